"""Parts of the scale bench: a control plane with kwok nodes, the systems that are compared on it,
and what is measured.
"""
