"""The environment beside its reference: a tour of decisions, what is compared, laws that hold without a reference."""
