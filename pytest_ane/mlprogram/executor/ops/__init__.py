"""Operations, one or one tight family per file; each reads as its formula.

Operands and parameters that do not fit an operation raise `ValueError`, indices and axes that there
are not `IndexError`; whoever runs it makes one `ExecutionError` of these.
"""
