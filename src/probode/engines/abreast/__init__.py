"""Members of an ensemble side by side: in the lanes of vectors, or a thread of a card for each.

One source for both, in C++ (``engines/native/src/abreast``): compiled with the kernels for every
instruction set, and for a card when it is called, for the problem at hand. :mod:`.problem` says
what is solved, :mod:`.on_host` and :mod:`.on_card` solve it.
"""
