"""The agent: a recurrent, masked, hierarchical-action PPO that knows nothing of what it controls."""
