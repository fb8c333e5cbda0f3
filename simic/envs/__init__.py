"""The growth task as a vector environment: actions, masks, observations, rewards, attribution, governor."""
