"""Data loading beside its peers: the same documents, tokenizer and mix, through each one's own loader."""
