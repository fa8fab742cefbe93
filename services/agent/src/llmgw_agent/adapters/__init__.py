"""The agent's hands: processes, files, sockets, NVML. Sole users of those libraries."""
