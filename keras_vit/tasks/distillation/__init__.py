"""Students that learn the outputs or features of teachers."""
