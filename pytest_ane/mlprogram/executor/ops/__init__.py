"""Operations, one or one tight family per file; each reads as its formula."""
