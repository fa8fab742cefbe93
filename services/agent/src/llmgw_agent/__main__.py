"""`python -m llmgw_agent`."""

from llmgw_agent.main import cli

if __name__ == "__main__":
    cli(prog_name="llmgw-agent")
