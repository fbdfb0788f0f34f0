"""How each system reads the corpus, as its own guide says. One file a system; `rank.py` runs one of them in a process.

A reader has `prepare(corpus, folder)`, which writes its own form of the documents, if it has one, and `Reader(task)`:
iterated, it gives batches, lists of the ids of documents; `state()` is what its own checkpoint holds behind the last
batch, as JSON.
"""
