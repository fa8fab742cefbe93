"""One file per engine: its command line, its health, its gauge. Pure, except the llama.cpp runner."""
