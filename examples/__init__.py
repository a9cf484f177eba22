"""Examples of code that users write around the library. Gin files import this code by name."""
