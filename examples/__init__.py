"""Examples of code that users write around the library. Gin files import it by name."""
