"""The growth task as a vector environment: actions, masks, observations, rewards, attribution, governor."""

import gymnasium

# gymnasium has no plugins: whoever asks for the id imports this first, or asks for "simic.envs:simic/Growth-v0".
gymnasium.register(
    "simic/Growth-v0",
    entry_point="simic.envs.single_env:SingleGrowthEnv",
    vector_entry_point="simic.envs.single_env:vector_growth_env",
)
