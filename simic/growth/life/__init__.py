"""What a seed may do, as tables: vocabulary, transitions, alpha, gates."""
