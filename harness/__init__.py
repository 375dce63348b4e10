"""voltabench's measuring library: what is measured, how, and what is kept of it."""

__version__ = "0.1.0"
