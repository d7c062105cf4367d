"""A large graph as a picture of its layers, and a picture of each layer.

A step graph is divided into parts by the purpose of its nodes, not by their names, so that the
graphs of both engines can be drawn. With the trained parameters ``P`` and their gradients
``P_grad`` (`docs/architecture.md`), the parts are:

- *forward*: the ancestors of the loss. A layer begins at a node that is the first to read a weight;
  any other node belongs to the last layer that it reads from. A node computed from weights alone
  belongs to the first layer that reads it.
- *backward*: the other ancestors of the gradients. A node belongs to the last layer whose gradients
  need it.
- *loss*: the nodes that depend on the labels.
- *metrics*: the other ancestors of the outputs that are not next states.
- *update*: the rest.

Arrows between forward parts go to later layers, and those between backward parts to earlier ones,
so that the parts form no cycle. While there are too many layers, adjacent ones whose weights have a
common name prefix (``layer2.0.conv1`` and ``layer2.0.conv2``) are joined.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.drawing.captions import cut, times
from ortboost.drawing.picture import Box, Picture, part_of
from ortboost.graph.query import known_shape, label, subgraphs
from ortboost.graph.reach import ancestors, values_read
from ortboost.program.names import LOSS_SCALE, NEXT, OVERFLOW

__all__ = ["Part", "collapse"]

_MOST = 16  # maximum number of layers
_MADE = re.compile(r"ortboost/([a-z_]+?)(?:_\d+)?/")  # name of a node that a rewrite made
_KINDS = ("input", "loss", "gradients", "metrics", "update")
_OF_UPDATE = (NEXT, LOSS_SCALE, OVERFLOW)  # outputs of the update
_NO_REWRITE = ("grad", "update", "const", "gate", "zeros", "metric", "loss")  # every step has them


@dataclass(frozen=True)
class Part:
    """A part of a graph, with boxes for the inputs from and outputs to other parts.

    Its name is the key of its box in the picture of all parts.
    """

    key: str
    picture: Picture


def collapse(
    model: ir.Model,
    whole: Picture,
    *,
    weights: Collection[str],
    loss: str | None,
    labels: str | None,
    changed: Mapping[str, Collection[str]],
) -> tuple[Picture, list[Part]]:
    """Collapse a picture into its parts.

    Args:
        model: The model.
        whole: The picture of all its nodes.
        weights: Names of the states and initializers.
        loss: Name of the loss of a training graph; None for other graphs.
        labels: Name of the labels input, which only the loss reads.
        changed: Rewrite to the names that were changed according to its report; some of them may no
            longer exist.

    Returns:
        The picture of the parts, and each part.
    """
    parts = _parts(model, weights, loss, labels)
    nodes: dict[str, list[ir.Node]] = {}  # by part
    for node in model.graph:
        nodes.setdefault(parts.setdefault(label(node), "update"), []).append(node)
    keys = [_key(box, parts) for box in whole.boxes]  # the part of each box
    marks, missing = _marks(nodes, parts, weights, changed)
    # One box for each part, in the order of their first nodes.
    boxes: dict[str, Box] = {}
    for key, box in zip(keys, whole.boxes, strict=True):
        if box.kind == "node":
            boxes.setdefault(key, _box(key, nodes[key], weights, marks.get(key)))
        elif key == NEXT:
            count = keys.count(NEXT)
            boxes[key] = Box(key, f"{count} states", ("their next values",), "output")
        else:
            boxes[key] = box
    # Arrows between boxes of two parts become one arrow between the parts.
    place = {key: index for index, key in enumerate(boxes)}
    ends = ((place[keys[s]], place[keys[t]]) for s, t in whole.arrows)
    arrows = list(dict.fromkeys((s, t) for s, t in ends if s != t))
    held = [key for key, box in boxes.items() if box.kind == "node"]
    count = sum(box.kind == "node" for box in whole.boxes)
    notes = [f"{count} nodes in {len(held)} parts", *whole.notes]
    if missing:
        listed = ", ".join(f"{rewrite} {number}" for rewrite, number in missing.items())
        notes.append(f"also changed, but not a node of this graph: {listed}")
    names = [boxes[key].title for key in keys]
    inside = {key: [i for i, other in enumerate(keys) if other == key] for key in held}
    return (
        Picture(list(boxes.values()), arrows, whole.title, notes),
        [Part(key, part_of(whole, inside[key], names)) for key in held],
    )


def _key(box: Box, parts: Mapping[str, str]) -> str:
    """The part of a box; each input and output is a part, all next states are one."""
    if box.kind == "node":
        return parts[box.key]
    return NEXT if box.kind == "output" and box.key.startswith(NEXT) else f"{box.kind} {box.key}"


# ---- assignment of nodes to parts ----------------------------------------------------------------


def _parts(
    model: ir.Model, weights: Collection[str], loss: str | None, labels: str | None
) -> dict[str, str]:
    made = {value.name: value for node in model.graph for value in node.outputs}
    gradients = {n: made[f"{n}_grad"] for n in weights if f"{n}_grad" in made} if loss else {}
    trains = bool(gradients) and loss in made
    # Gradients also depend on the forward pass, so what both need is forward.
    forward = ancestors([made[str(loss)]]) if trains else set(model.graph)
    needed = {name: ancestors([value]) for name, value in gradients.items()}
    backward = set().union(*needed.values()) - forward

    # Forward: in the order of the graph, each node opens a layer or joins one.
    layer: dict[ir.Node, int] = {}  # the layer of a node; -1 before the first
    names: list[list[str]] = []  # weights that a layer is the first to read
    home: dict[str, int] = {}  # the first layer that reads a weight
    behind: set[ir.Node] = set()  # nodes that depend on the labels
    made_of: dict[ir.Node, list[ir.Value]] = {}  # nodes that depend on weights alone, to these
    for node in (node for node in model.graph if node in forward):
        sources = values_read(node)
        producers = [p for p in (v.producer() for v in sources) if p is not None]
        read = [v for v in sources if v.name in weights]
        read += [v for p in producers for v in made_of.get(p, ())]
        if all(v.name in weights or v.producer() in made_of for v in sources):
            made_of[node] = read  # for its readers, as if they read the weights themselves
            continue
        if any(v.name == labels for v in sources) or any(p in behind for p in producers):
            behind.add(node)
        fresh = [str(v.name) for v in read if _is_weight(v, weights) and v.name not in home]
        if fresh and node not in behind:  # a weight of the loss opens no layer
            names.append(fresh)
            layer[node] = len(names) - 1
        else:
            layer[node] = max((layer[p] for p in producers if p in layer), default=-1)
        for value in read:
            home.setdefault(str(value.name), layer[node])
    for node in reversed(made_of):  # such as a cast: in the first layer that uses it
        readers = {use.node for v in node.outputs for use in v.uses() if use.node in layer}
        layer[node] = min((layer[reader] for reader in readers), default=-1)
        if readers and readers <= behind:
            behind.add(node)
    titles = _titles(names)
    found = {
        label(n): "loss" if n in behind else titles[i] if i >= 0 else "input"
        for n, i in layer.items()
    }
    # Backward: a node that several gradients need belongs to the layer nearest to the loss.
    latest: dict[ir.Node, int] = {}
    for name, nodes in needed.items():
        for node in nodes & backward:
            latest[node] = max(latest.get(node, -1), home.get(name, -1))
    found |= {label(n): f"gradients of {titles[i]}" for n, i in latest.items() if i >= 0}
    found |= {label(n): "gradients" for n, i in latest.items() if i < 0}
    # Metrics: what other outputs need besides. The caller puts all remaining nodes into "update".
    reported = [v for v in model.graph.outputs if not (v.name or "").startswith(_OF_UPDATE)]
    metrics = ancestors(reported) - forward - backward
    return found | {label(node): "metrics" for node in metrics}


def _is_weight(value: ir.Value, weights: Collection[str]) -> bool:
    """Whether a value opens a layer: not a bias, a scale, or a counter of the step."""
    shape = known_shape(value)
    return value.name in weights and shape is not None and len(shape) > 1


def _titles(names: Sequence[Sequence[str]]) -> list[str]:
    """A title for each layer; adjacent layers with the same title are joined into one part."""
    stems = [one[0].rpartition(".")[0] or one[0] for one in names]
    stems = [f"{stem} (layer)" if stem in _KINDS else stem for stem in stems]
    # Shorten the deepest names by one part until few enough runs of equal names are left.
    while len(list(itertools.groupby(stems))) > _MOST and any("." in stem for stem in stems):
        deepest = max(stem.count(".") for stem in stems)
        stems = [s.rpartition(".")[0] if s.count(".") == deepest else s for s in stems]
    found: list[str] = []
    seen: Counter[str] = Counter()
    for stem, same in itertools.groupby(stems):
        seen[stem] += 1  # adjacent ones only: joining others could create a cycle
        found += [stem if seen[stem] == 1 else f"{stem} ({seen[stem]})"] * len(list(same))
    return found


# ---- text of a part -----------------------------------------------------------------------------


def _box(key: str, nodes: Sequence[ir.Node], weights: Collection[str], mark: str | None) -> Box:
    operators = Counter(n.op_type for n in nodes if n.op_type != "Constant")
    listed = ", ".join(f"{n} {op}" if n > 1 else op for op, n in operators.most_common())
    inner = sum(sum(1 for _ in g.all_nodes()) for n in nodes for g in subgraphs(n))
    shapes = {
        v.name: known_shape(v) for n in nodes for v in n.inputs if v and _is_weight(v, weights)
    }
    only = next(iter(shapes.values())) if len(shapes) == 1 and key not in _KINDS else None
    only = None if key.startswith("gradients") else only
    lines = [
        f"{sum(operators.values())} nodes" + (f", {inner} in branches" if inner else ""),
        cut(listed),
        f"weight {times(only)}" if only else "",
    ]
    family = {"update": "norm", "loss": "activation", "metrics": "activation"}.get(key, "dense")
    family = "layout" if key.startswith("gradients") else family
    return Box(key, key, tuple(line for line in lines if line), family=family, mark=mark)


def _marks(
    nodes: Mapping[str, Sequence[ir.Node]],
    parts: Mapping[str, str],
    weights: Collection[str],
    changed: Mapping[str, Collection[str]],
) -> tuple[dict[str, str], Counter[str]]:
    """Part to the rewrites that changed it, with counts; and counts of other changes."""
    # Reports name nodes or tensors; a node's name wins over an equal name of a tensor.
    owners = {v.name or "": key for key, held in nodes.items() for n in held for v in n.outputs}
    owners |= parts
    found: dict[str, Counter[str]] = {key: Counter() for key in nodes}
    missing: Counter[str] = Counter()
    for rewrite, names in changed.items():
        for name in names:
            key = owners.get(name) or _heir(name, owners)
            if key is None and name in weights and "update" in nodes:
                key = "update"  # a change of a parameter or its gradient
            (missing if key is None else found[key])[rewrite] += 1
    # Nodes that a rewrite made carry its name, also if its report names others.
    for key, held in nodes.items():
        made = Counter(m[1] for n in held if (m := _MADE.match(label(n))))
        for rewrite, count in made.items():
            if rewrite not in _NO_REWRITE and rewrite not in found[key]:
                found[key][rewrite] = count
    marks = {
        key: ", ".join(f"{rewrite} {count}" for rewrite, count in counts.items())
        for key, counts in found.items()
        if counts
    }
    return marks, missing


def _heir(name: str, owners: Mapping[str, str]) -> str | None:
    """The part of a removed node: that of nodes named after it, or of all in its scope."""
    front = name.split("/")[:-1]  # without the outermost scope, which holds everything
    scopes = ["/".join(front[:end]) + "/" for end in range(len(front), 2, -1)]
    for scope in (name, *scopes):  # the narrowest with any node left decides, if in one part
        keys = {key for other, key in owners.items() if scope in other}
        # Gradients and updates are named after what they belong to, and would match too.
        keys = {key for key in keys if not key.startswith(("gradients", "update"))}
        if keys:
            return keys.pop() if len(keys) == 1 else None
    return None
