"""The paper's tables and figures, and how they are measured."""
