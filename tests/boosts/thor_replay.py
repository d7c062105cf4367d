"""THOR in float64 numpy, from the formulas alone: networks by hand, `np.linalg.inv`, no graph.

Written apart from the package: nothing of it is imported.
"""

import itertools

import numpy as np


class Dense:
    """`y = x w (+ b)`; the weight is ``[in, out]``, or ``[out, in]`` with ``turned``."""

    def __init__(self, weight, bias=None, turned=False):
        self.weight, self.bias, self.turned = weight, bias, turned

    def forward(self, p, x):
        self.x = x
        w = p[self.weight].T if self.turned else p[self.weight]
        return x @ w + (0 if self.bias is None else p[self.bias])

    def backward(self, p, d, grads):
        self.d = d
        w = p[self.weight].T if self.turned else p[self.weight]
        x2, d2 = self.x.reshape(-1, w.shape[0]), d.reshape(-1, w.shape[1])
        grads[self.weight] = d2.T @ x2 if self.turned else x2.T @ d2
        if self.bias is not None:
            grads[self.bias] = d2.sum(0)
        return d @ w.T

    def rows(self):
        """Groups of rows of `a` and of `D`."""
        return [(self.x.reshape(-1, self.x.shape[-1]), self.d.reshape(-1, self.d.shape[-1]))]


class Conv:
    def __init__(
        self, weight, bias=None, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1
    ):
        self.weight, self.bias, self.group = weight, bias, group
        self.strides, self.pads, self.dilations = strides, pads, dilations

    def patches(self, x, kernel):
        """``[samples, positions, channels, kernel...]``."""
        top, left, bottom, right = self.pads
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        size = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(x.shape[2:], kernel, self.strides, self.dilations, strict=True)
        ]
        found = np.zeros((len(x), *size, x.shape[1], *kernel))
        for i, j in itertools.product(*map(range, kernel)):
            y, z = i * self.dilations[0], j * self.dilations[1]
            (sy, sx), (ny, nx) = self.strides, size
            part = x[:, :, y : y + sy * ny : sy, z : z + sx * nx : sx]
            found[..., i, j] = part.transpose(0, 2, 3, 1)
        return found.reshape(len(x), -1, x.shape[1], *kernel), size

    def forward(self, p, x):
        w = p[self.weight]
        self.shape, self.kernel = x.shape, w.shape[2:]
        self.cut, size = self.patches(x, self.kernel)
        out, inner = w.shape[0] // self.group, w.shape[1]
        y = [
            np.einsum(
                "ntcij,ocij->nto",
                self.cut[:, :, g * inner : (g + 1) * inner],
                w[g * out : (g + 1) * out],
            )
            for g in range(self.group)
        ]
        y = np.concatenate(y, -1) + (0 if self.bias is None else p[self.bias])
        return y.transpose(0, 2, 1).reshape(len(x), -1, *size)

    def backward(self, p, d, grads):
        w = p[self.weight]
        self.d = d.reshape(*d.shape[:2], -1).transpose(0, 2, 1)
        out, inner = w.shape[0] // self.group, w.shape[1]
        grad, back = np.zeros_like(w), np.zeros_like(self.cut)
        for g in range(self.group):
            rows, columns = slice(g * out, (g + 1) * out), slice(g * inner, (g + 1) * inner)
            grad[rows] = np.einsum("nto,ntcij->ocij", self.d[..., rows], self.cut[:, :, columns])
            back[:, :, columns] = np.einsum("nto,ocij->ntcij", self.d[..., rows], w[rows])
        grads[self.weight] = grad
        if self.bias is not None:
            grads[self.bias] = self.d.sum((0, 1))
        # the transpose of cutting patches, column by column of its matrix
        n = len(back)
        index = np.arange(1, 1 + np.prod(self.shape[1:])).reshape(1, *self.shape[1:]).astype(float)
        places = self.patches(index, self.kernel)[0][0].astype(int).ravel()
        x = np.zeros((n, 1 + int(np.prod(self.shape[1:]))))
        for sample in range(n):
            np.add.at(x[sample], places, back[sample].ravel())
        return x[:, 1:].reshape(self.shape)

    def rows(self):
        n, t = self.cut.shape[:2]
        a = self.cut.reshape(n * t, self.group, -1)
        d = self.d.reshape(n * t, self.group, -1)
        return [(a[:, g], d[:, g]) for g in range(self.group)]


class Embedding:
    def __init__(self, weight):
        self.weight = weight

    def forward(self, p, ids):
        self.ids, self.entries = ids, len(p[self.weight])
        return p[self.weight][ids]

    def backward(self, p, d, grads):
        self.d = d
        grads[self.weight] = np.zeros_like(p[self.weight])
        np.add.at(grads[self.weight], self.ids.ravel(), d.reshape(-1, d.shape[-1]))

    def rows(self):
        return [(np.eye(self.entries)[self.ids.ravel()], self.d.reshape(-1, self.d.shape[-1]))]


class LayerNorm:
    def __init__(self, scale, bias, epsilon):
        self.scale, self.bias, self.epsilon = scale, bias, epsilon

    def forward(self, p, x):
        self.sigma = np.sqrt(x.var(-1, keepdims=True) + self.epsilon)
        self.x = (x - x.mean(-1, keepdims=True)) / self.sigma
        return self.x * p[self.scale] + p[self.bias]

    def backward(self, p, d, grads):
        self.d = d
        axes = tuple(range(d.ndim - 1))
        grads[self.scale], grads[self.bias] = (d * self.x).sum(axes), d.sum(axes)
        d = d * p[self.scale]
        mean = d.mean(-1, keepdims=True)
        return (d - mean - self.x * (d * self.x).mean(-1, keepdims=True)) / self.sigma


class Relu:
    def forward(self, p, x):
        self.mask = x > 0
        return x * self.mask

    def backward(self, p, d, grads):
        return d * self.mask


class MeanPool:
    def forward(self, p, x):
        self.shape = x.shape
        return x.mean((2, 3))

    def backward(self, p, d, grads):
        return np.broadcast_to(d[:, :, None, None], self.shape) / np.prod(self.shape[2:])


def cross_entropy(logits, labels):
    """Mean over the labels from 0 on, its gradient, and their number."""
    flat = logits.reshape(-1, logits.shape[-1])
    counts = labels.ravel() >= 0
    e = np.exp(flat - flat.max(1, keepdims=True))
    soft = e / e.sum(1, keepdims=True)
    picked = np.flatnonzero(counts), labels.ravel()[counts]
    loss = -np.log(soft[picked]).mean()
    soft[picked] -= 1
    soft[~counts] = 0
    return loss, (soft / counts.sum()).reshape(logits.shape), counts.sum()


def gradients(layers, p, x, labels):
    """Loss, gradients of the mean loss, and `N`; the layers remember their rows."""
    for layer in layers:
        x = layer.forward(p, x)
    loss, d, terms = cross_entropy(x, labels)
    grads = {}
    for layer in reversed(layers):
        d = layer.backward(p, d, grads)
    return loss, grads, terms


def in_blocks(matrix, block):
    """The matrix with zeros between the blocks on its diagonal."""
    if not block:
        return matrix
    of = np.arange(len(matrix)) // block
    return matrix * (of[:, None] == of[None])


def mean_of(batches):
    """The means of gradients, or of factors, over several batches."""

    def mean(values):
        if isinstance(values[0], list):
            return [mean(parts) for parts in zip(*values, strict=True)]
        return sum(values) / len(values)

    return {name: mean([batch[name] for batch in batches]) for name in batches[0]}


class Thor:
    """The optimizer; ``mode="paper"``."""

    def __init__(self, damping, frequency, momentum=0.9, block=128, factor_decay=0.0, pi=False,
                 weight_decay=0.0, clip=False, nesterov=False, damping_decay=1.0,
                 kl_clip=0.0, center=None):  # fmt: skip
        self.damping, self.frequency, self.momentum, self.block = (
            damping,
            frequency,
            momentum,
            block,
        )
        self.factor_decay, self.pi, self.weight_decay = factor_decay, pi, weight_decay
        self.clip, self.nesterov, self.damping_decay = clip, nesterov, damping_decay
        self.kl_clip, self.center = kl_clip, center or {}  # weight to the axis of its inputs
        self.count, self.factors, self.inverses, self.velocity = 0, {}, {}, {}

    def factors_of(self, layers, terms):
        """Name to the factors of all groups, `sqrt(R/N) E[a a^T]` and `sqrt(R/N) E[g g^T]`."""
        found = {}
        for layer in layers:
            if isinstance(layer, LayerNorm):
                g = terms * layer.d.reshape(-1, layer.d.shape[-1])
                x = layer.x.reshape(g.shape)
                found[layer.scale] = [((g * x) ** 2).sum(0) / terms]
                found[layer.bias] = [(g**2).sum(0) / terms]
            elif hasattr(layer, "weight"):
                found[layer.weight] = []
                for a, d in layer.rows():
                    share, g = np.sqrt(len(a) / terms), terms * d
                    pair = [share * m.T @ m / len(m) for m in (a, g)]
                    found[layer.weight] += pair
        return found

    def refresh(self, factors, layers, root):
        for name, new in factors.items():
            old = self.factors.get(name)
            if self.factor_decay and old is not None:
                new = [
                    self.factor_decay * o + (1 - self.factor_decay) * n
                    for o, n in zip(old, new, strict=True)
                ]
            self.factors[name] = new
        tables = [layer.weight for layer in layers if isinstance(layer, Embedding)]
        for name, found in self.factors.items():
            if found[0].ndim == 1:
                self.inverses[name] = [1 / (found[0] + root)]
                continue
            self.inverses[name] = []
            for a, g in zip(found[::2], found[1::2], strict=True):
                ratio = 1.0
                if self.pi:
                    # of all groups of a layer together
                    means = [np.mean([np.trace(f) / len(f) for f in found[i::2]]) for i in (0, 1)]
                    ratio = np.clip(np.sqrt(means[0] / means[1]), 1e-3, 1e3)
                for factor, delta, cut in (
                    (
                        a,
                        root if name in tables else root * ratio,
                        0 if name in tables else self.block,
                    ),
                    (g, root / ratio, self.block),
                ):
                    eye = np.eye(len(factor))
                    self.inverses[name].append(np.linalg.inv(in_blocks(factor, cut) + delta * eye))

    def preconditioned(self, name, gradient, by_weight):
        u = gradient
        inverses = self.inverses.get(name)
        if inverses is not None and inverses[0].ndim == 1:
            u = gradient * inverses[0]
        elif inverses is not None:
            layer = by_weight[name]
            rows_out = isinstance(layer, Conv) or getattr(layer, "turned", False)
            groups = len(inverses) // 2
            matrices = gradient.reshape(groups, gradient.shape[0] // groups, -1)
            u = np.stack([
                g @ m @ a if rows_out else a @ m @ g
                for a, g, m in zip(inverses[::2], inverses[1::2], matrices, strict=True)
            ]).reshape(gradient.shape)  # fmt: skip
        return u

    def update(self, layers, p, grads, factors, rate, decay=None):
        """One update; ``factors`` are used if it is one of second order."""
        damping = self.damping
        if isinstance(damping, tuple):
            damping = damping[min(self.count, len(damping) - 1)]
        root = np.sqrt(damping * self.damping_decay**self.count)
        if self.count % self.frequency == 0:
            self.refresh(factors, layers, root)
        by_weight = {layer.weight: layer for layer in layers if hasattr(layer, "weight")}
        steps = {name: self.preconditioned(name, g, by_weight) for name, g in grads.items()}
        if self.kl_clip:
            change = rate**2 * sum((steps[n] * grads[n]).sum() for n in self.inverses)
            for name in self.inverses:
                steps[name] = steps[name] * min(1.0, np.sqrt(self.kl_clip / change))
        for name, u in steps.items():
            u = u + (self.weight_decay if decay is None else decay.get(name, 0)) * p[name]
            if self.clip:
                u = u / max(1.0, np.linalg.norm(u))
            if name in self.center:
                u = u - u.mean(self.center[name], keepdims=True)
            v = self.momentum * self.velocity.get(name, 0) + u
            self.velocity[name] = v
            p[name] = p[name] - rate * (u + self.momentum * v if self.nesterov else v)
        self.count += 1

    def step(self, layers, p, x, labels, rate):
        loss, grads, terms = gradients(layers, p, x, labels)
        self.update(layers, p, grads, self.factors_of(layers, terms), rate)
        return loss
