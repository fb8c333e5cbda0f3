"""The learner's half: what is seen, decided, advantaged and learned, derived again from what the environment gave."""
