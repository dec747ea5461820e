"""Every sentence that a model, a person or a program reads about a failure or a notice."""
