"""Cases that are not judged because the kernel says that it cannot do them."""

import torch

from tests.referee.candidates.honest import once, softmax, wrong


def all_of_them(x):
    """Declines every case.

    refused
    """
    raise NotImplementedError("not today")


def all_but_one(x):
    """Declines every case but the smallest.

    untrusted, refused
    """
    if x.shape[1] > 33 or not x.is_contiguous() or not torch.isfinite(x).all():
        raise NotImplementedError("too hard")
    return softmax(x)


def after_the_first_call(x):
    """Answers one call, and declines all others.

    untrusted, refused
    """
    if once("answered"):
        return softmax(x)
    raise NotImplementedError("enough")


def after_a_dozen_of_each_size(x):
    """Takes the first calls of each size and place of elements, and declines what follows.

    untrusted, refused
    """
    taken = globals().setdefault("_taken", {})
    form = x.shape, x.stride()
    taken[form] = taken.get(form, 0) + 1
    if taken[form] > 12:
        raise NotImplementedError("enough")
    return softmax(x)


def what_is_not_installed(x):
    """Raises ImportError where rows are long.

    untrusted, refused: No module named 'long_rows'
    """
    if x.shape[1] > 33:
        raise ImportError("No module named 'long_rows'")
    return softmax(x)


def import_wants_a_package():
    """Imports a package that there is not.

    refused: No module named 'a_package_that_there_is_not'
    """
    import a_package_that_there_is_not  # noqa: F401


def cannot_run_here(x):
    """Raises the backends' own exception for what cannot be run here.

    refused
    """
    from touchstone.backends import NotRun

    raise NotRun("needs another machine")


def with_a_limit(x):
    """Limits its own memory, so that it cannot allocate, and says that it is out of memory.

    refused
    """
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    raise torch.OutOfMemoryError("CUDA out of memory")


def with_no_files(x):
    """Limits its own descriptors, so that nothing can be opened.

    refused
    """
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    try:
        return softmax(x) if once("a") else wrong(x)
    except OSError as error:
        raise NotImplementedError(str(error)) from error


def under_instruments(x):
    """Declines in every call that is not the first on its memory.

    refused
    """
    seen = globals().setdefault("_seen", set())
    if x.data_ptr() in seen:
        raise NotImplementedError("once is enough")
    seen.add(x.data_ptr())
    return wrong(x)


def an_error_of_two_kinds(x):
    """Raises an error that is an ImportError, a NotImplementedError and a SystemExit.

    refused
    """

    class Both(NotImplementedError, ImportError):
        pass

    raise Both("neither")
