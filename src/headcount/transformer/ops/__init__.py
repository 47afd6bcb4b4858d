"""Operations: each file holds an equation, its gradient by hand, ``forward``, ``backward`` and the joined call."""
