"""tmp."""


def decompose(model, *, wrt, loss, engine):
    return None
