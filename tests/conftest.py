"""What every kind of test may ask for; see llmgw_kit.testing."""

pytest_plugins = ["llmgw_kit.testing.fixtures"]
