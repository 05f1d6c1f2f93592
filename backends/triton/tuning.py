def pinned(key, dtype, sizes, default):
    return default
