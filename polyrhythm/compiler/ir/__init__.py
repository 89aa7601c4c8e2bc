"""What a program means: index terms, integer sets, the op table, and the dependence graph."""
