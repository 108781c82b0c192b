"""The user's function as a program: traced, told from others, differentiated, stored."""
