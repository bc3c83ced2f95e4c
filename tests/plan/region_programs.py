"""Random StableHLO programs with loops, choices, manual computations, calls, barriers, groups."""

import random
from dataclasses import dataclass, field
from math import prod

from tests.plan.programs import random_sharding, sharding_text

from weft.plan.propagation.shardings import append

SIZES = [1, 2, 4, 6, 8, 12, 16]
PLAIN = ["pointwise", "pointwise", "unary", "dot", "transpose", "reshape", "reduce", "broadcast"]
AROUND = ["loop", "choice", "barrier", "optimization_barrier", "constraint", "custom", "rule"]
AROUND += ["several_results"]
ISOLATED = ["manual", "call"]
NESTED = ["loop", "choice", *ISOLATED]
DIRECTIONS = ["NONE", "FORWARD", "BACKWARD"]

LOOP = """
sdy.mesh @m = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, COLUMNS]>},
                %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %n = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<8x16xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    stablehlo.return %i, %1 : tensor<i32>, tensor<8x16xf32>
  }
  return %0#1 : tensor<8x16xf32>
}
"""


def loop(columns):
    """A product in a loop, of a value whose columns lie so."""
    return LOOP.replace("COLUMNS", columns)


@dataclass
class Scope:
    """A block: the values that can be used in it, and those that nobody has used yet."""

    values: list[tuple[str, tuple[int, ...]]]
    free: list[int]
    """The numbers of the mesh axes that are not manual here."""
    depth: int = 0
    lines: list[str] = field(default_factory=list)
    unused: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def inner(self, values, free=None):
        return Scope(values, self.free if free is None else free, self.depth + 1)


class Writer:
    """Writes a program; what nobody uses is kept by a call with side effects."""

    def __init__(self, seed, priorities=False, only=None, meshes=False):
        self.rng = random.Random(seed)
        self.priorities = priorities
        self.only = only
        self.mesh = [self.rng.choice([2, 2, 3, 4, 8]) for _ in range(self.rng.randint(1, 3))]
        self.meshes = ["m"]
        if meshes:
            self.meshes += self.rng.sample(["n", "same", "other", "empty", "maximal"], 2)
        self.count = 0
        self.functions: list[str] = []
        self.callable: list[tuple[str, list[tuple[int, ...]], list[tuple[int, ...]]]] = []
        self.groups = 0
        self.call_is = self.rng.choice([self.new_call, self.named])
        """How this program computes under a name; the passes refuse programs that do both."""

    # Text.

    def text(self, operators):
        rng = self.rng
        shapes = [self.shape() for _ in range(rng.randint(1, 3))]
        scope = Scope([(f"%a{n}", s) for n, s in enumerate(shapes)], list(range(len(self.mesh))))
        heads = [f"{name}: {kind(s)}{self.on(s, 0.7)}" for name, s in scope.values]
        self.fill(scope, operators)
        outputs = list(scope.unused.items())
        kinds = [f"{kind(s)}{self.on(s, 0.25)}" for _, s in outputs]
        names = ", ".join(name for name, _ in outputs)
        returned = f"return {names} : {', '.join(kind(s) for _, s in outputs)}"
        main = f"func.func @main({', '.join(heads)}) -> ({', '.join(kinds)}) {{"
        body = [main, *scope.lines, returned if outputs else "return", "}"]
        return "\n".join([*self.mesh_lines(), *self.functions, *body])

    def mesh_lines(self):
        axes = ", ".join(f'"a{axis}"={size}' for axis, size in enumerate(self.mesh))
        ids = list(range(prod(self.mesh)))[::-1]
        lines = {
            "m": f"<[{axes}]>",
            "n": f"<[{axes}], device_ids={ids}>",
            "same": f"<[{axes}]>",
            "other": f'<["b0"={prod(self.mesh)}]>',
            "empty": "<[]>",
            "maximal": "<[], device_ids=[1]>",
        }
        return [f"sdy.mesh @{name} = {lines[name]}" for name in self.meshes]

    def sharding(self, shape, free=None):
        """A random sharding, on a random mesh if there are several."""
        mesh = self.rng.choice(self.meshes)
        if mesh == "maximal":
            return "<@maximal, []>"
        sizes = {"other": [prod(self.mesh)], "empty": []}.get(mesh, self.mesh)
        found = random_sharding(self.rng, len(shape), sizes)._replace(unreduced=())
        if free is not None and mesh in ("m", "n", "same"):
            found = found._replace(
                axes=tuple(kept(pieces, free) for pieces in found.axes),
                replicated=kept(found.replicated, free),
                unreduced=kept(found.unreduced, free),
            )
        text = sharding_text(found, sizes, self.levels(found)).replace("@m", f"@{mesh}")
        return text.replace('"a0"', '"b0"') if mesh == "other" else text

    def levels(self, found):
        return [
            self.rng.choice([0, 0, 1, 2]) if self.priorities and (axes or opened) else 0
            for axes, opened in zip(found.axes, found.is_open)
        ]

    def on(self, shape, chance, free=None):
        if self.rng.random() >= chance:
            return ""
        return f" {{sdy.sharding = #sdy.sharding{self.sharding(shape, free)}}}"

    def per_value(self, shapes, chance, free):
        if self.rng.random() >= chance:
            return ""
        texts = ", ".join(self.sharding(shape, free) for shape in shapes)
        return f"{{sdy.sharding = #sdy.sharding_per_value<[{texts}]>}} "

    def shape(self):
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.randint(0, 3)))

    # Blocks.

    def fill(self, scope, operators):
        choices = PLAIN * 2 + AROUND + ISOLATED + ["group"] if self.only is None else self.only
        if scope.depth >= 2:
            choices = [name for name in choices if name not in NESTED]
        for _ in range(operators):
            getattr(self, self.rng.choice(choices))(scope)

    def name(self):
        self.count += 1
        return f"%v{self.count}"

    def any(self, scope, least=0):
        fitting = [value for value in scope.values if len(value[1]) >= least]
        if not fitting:
            shape = tuple(self.rng.choice(SIZES) for _ in range(least))
            return self.constant(scope, shape)
        name, shape = self.rng.choice(fitting)
        scope.unused.pop(name, None)
        return name, shape

    def alike(self, scope, shape):
        name, _ = self.rng.choice([value for value in scope.values if value[1] == shape])
        scope.unused.pop(name, None)
        return name

    def give(self, scope, shape):
        """Some value of a shape, a constant if there is no other."""
        if any(value[1] == shape for value in scope.values) and self.rng.random() < 0.9:
            return self.alike(scope, shape)
        name, _ = self.constant(scope, shape)
        scope.unused.pop(name)
        return name

    def constant(self, scope, shape):
        return self.emit(scope, shape, f"stablehlo.constant dense<1.0> : {kind(shape)}", 0)

    def emit(self, scope, shape, body, chance=0.2):
        """Add an operation; @@ in its body stands for attributes."""
        name = self.name()
        extra = self.per_value([shape], chance, scope.free)
        scope.lines.append(f"{name} = {body.replace('@@', extra)}")
        self.made(scope, name, shape)
        return name, shape

    def made(self, scope, name, shape):
        scope.values.append((name, shape))
        scope.unused[name] = shape

    def close(self, scope, returned, shapes, terminator):
        """End a block that returns those values; the rest is kept alive."""
        for name, shape in scope.unused.items():
            if name not in returned:
                body = f'"stablehlo.custom_call"({name}) <{{call_target_name = "keep", '
                scope.lines.append(f"{body}has_side_effect = true}}> : ({kind(shape)}) -> ()")
        types = ", ".join(map(kind, shapes))
        colon = f" : {types}" if shapes else ""
        return [*scope.lines, f"{terminator} {', '.join(returned)}{colon}"]

    # Plain operators.

    def pointwise(self, scope):
        a, shape = self.any(scope)
        b = self.alike(scope, shape)
        self.emit(scope, shape, f"stablehlo.add {a}, {b} @@: {kind(shape)}")

    def unary(self, scope):
        a, shape = self.any(scope)
        self.emit(scope, shape, f"stablehlo.tanh {a} @@: {kind(shape)}")

    def dot(self, scope):
        (a, s), (b, t) = self.any(scope, 1), self.any(scope, 1)
        pairs = [(i, j) for i, m in enumerate(s) for j, n in enumerate(t) if m == n]
        i, j = self.rng.choice(pairs) if pairs else (None, None)
        shape = tuple(n for d, n in enumerate(s) if d != i) + tuple(
            n for d, n in enumerate(t) if d != j
        )
        dims = f"[{i}] x [{j}]" if pairs else "[] x []"
        if len(shape) <= 4:
            types = f"({kind(s)}, {kind(t)}) -> {kind(shape)}"
            body = f"stablehlo.dot_general {a}, {b}, contracting_dims = {dims} @@: {types}"
            self.emit(scope, shape, body)
        else:
            scope.unused.update({a: s, b: t})

    def transpose(self, scope):
        a, shape = self.any(scope, 1)
        order = self.rng.sample(range(len(shape)), len(shape))
        new = tuple(shape[d] for d in order)
        body = f"stablehlo.transpose {a}, dims = {order} @@: ({kind(shape)}) -> {kind(new)}"
        self.emit(scope, new, body)

    def reshape(self, scope):
        a, shape = self.any(scope, 1)
        left, new = prod(shape), list[int]()
        while left > 1 and len(new) < 3:
            new.append(self.rng.choice([n for n in range(2, left + 1) if left % n == 0]))
            left //= new[-1]
        new = tuple([*new, left] if left > 1 else new)
        self.emit(scope, new, f"stablehlo.reshape {a} @@: ({kind(shape)}) -> {kind(new)}")

    def reduce(self, scope):
        a, shape = self.any(scope, 1)
        zero, _ = self.emit(scope, (), "stablehlo.constant dense<0.0> : tensor<f32>", 0)
        scope.unused.pop(zero)
        scope.values.pop()
        dim = self.rng.randrange(len(shape))
        new = tuple(n for d, n in enumerate(shape) if d != dim)
        body = f"stablehlo.reduce({a} init: {zero}) applies stablehlo.add across dimensions = "
        self.emit(scope, new, f"{body}[{dim}] @@: ({kind(shape)}, tensor<f32>) -> {kind(new)}")

    def broadcast(self, scope):
        a, shape = self.any(scope)
        if len(shape) < 4:
            where = self.rng.randint(0, len(shape))
            new = (*shape[:where], self.rng.choice(SIZES), *shape[where:])
            dims = [d for d in range(len(new)) if d != where]
            body = f"stablehlo.broadcast_in_dim {a}, dims = {dims} @@: ({kind(shape)}) -> "
            self.emit(scope, new, body + kind(new))
        else:
            scope.unused[a] = shape

    # What stands around them.

    def constraint(self, scope):
        a, shape = self.any(scope)
        on = self.sharding(shape, scope.free)
        self.emit(scope, shape, f"sdy.sharding_constraint {a} {on} {{mine}} : {kind(shape)}")

    def barrier(self, scope):
        a, shape = self.any(scope)
        way = self.rng.choice(DIRECTIONS)
        body = f"sdy.propagation_barrier {a} allowed_direction={way} @@: {kind(shape)}"
        self.emit(scope, shape, body)

    def custom(self, scope):
        a, shape = self.any(scope)
        target = self.rng.choice(["mhlo.erf", "MoveToHost", "LayoutConstraint", "mystery"])
        types = f"({kind(shape)}) -> {kind(shape)}"
        self.emit(scope, shape, f"stablehlo.custom_call @{target}({a}) @@: {types}")

    def several_results(self, scope):
        a, shape = self.any(scope, 1)
        new = (*shape[:-1], self.rng.randint(1, shape[-1]))
        types = f"({kind(shape)}) -> ({kind(new)}, {kind(new)})"
        self.several(scope, [new, new], [f"stablehlo.custom_call @mhlo.topk({a}) @@: {types}"])

    def rule(self, scope):
        """An operation with a rule that its author wrote."""
        a, shape = self.any(scope)
        letters = [chr(ord("i") + d) for d in range(len(shape))]
        order = self.rng.sample(range(len(shape)), len(shape))
        new = tuple(shape[d] for d in order)
        sizes = ", ".join(f"{x}={n}" for x, n in zip(letters, shape))
        sides = f"([{', '.join(letters)}])->([{', '.join(letters[d] for d in order)}])"
        kinds = {}
        for letter in letters:
            word = self.rng.choice(["", "", "need_replication", "permutation", "blocked"])
            kinds.setdefault(word.replace("blocked", "blocked_propagation"), []).append(letter)
        said = "".join(f" {w}={{{', '.join(kinds[w])}}}" for w in KINDS if w in kinds)
        text = f"{sides} {{{sizes}}}{said}" if shape else sides
        extra = f"sdy.sharding_rule = #sdy.op_sharding_rule<{text}, custom>"
        if self.rng.random() < 0.2:
            on = self.sharding(new, scope.free)
            extra += f", sdy.sharding = #sdy.sharding_per_value<[{on}]>"
        types = f"({kind(shape)}) -> {kind(new)}"
        self.emit(scope, new, f"stablehlo.custom_call @foo({a}) {{{extra}}} : {types}")

    def group(self, scope):
        """Two values in one group, which sometimes is the group of the last two."""
        a, shape = self.rng.choice(scope.values)
        b, _ = self.rng.choice([value for value in scope.values if value[1] == shape])
        self.groups += self.rng.random() < 0.8
        for name in (a, b):
            scope.lines.append(f"sdy.sharding_group {name} group_id={self.groups} : {kind(shape)}")

    def optimization_barrier(self, scope):
        given = [self.any(scope) for _ in range(self.rng.randint(1, 2))]
        names, types = ", ".join(n for n, _ in given), ", ".join(kind(s) for _, s in given)
        line = f'"stablehlo.optimization_barrier"({names}) @@: ({types}) -> ({types})'
        self.several(scope, [s for _, s in given], [line])

    def several(self, scope, shapes, lines, chance=0.2):
        """Add an operation of several lines and results."""
        name = self.name()
        extra = self.per_value(shapes, chance, scope.free)
        count = f":{len(shapes)}" if len(shapes) > 1 else ""
        first, *rest = [line.replace("@@", extra) for line in lines]
        scope.lines += [f"{name}{count} = {first}" if shapes else first, *rest]
        for place, shape in enumerate(shapes):
            self.made(scope, f"{name}#{place}" if count else name, shape)

    def size(self):
        return self.rng.randint(1, 3)

    def loop(self, scope):
        given = [self.any(scope) for _ in range(self.rng.randint(1, 3))]
        names, shapes = [self.name() for _ in given], [s for _, s in given]
        condition = scope.inner([*scope.values, *zip(names, shapes)])
        if self.rng.random() < 0.3:
            self.fill(condition, 1)
        true = "%p = stablehlo.constant dense<true> : tensor<i1>"
        condition.lines.append(true)
        cond = self.close(condition, ["%p"], ["i1"], "stablehlo.return")
        body = scope.inner([*scope.values, *zip(names, shapes)])
        self.fill(body, self.size())
        next_ = [self.give(body, shape) for shape in shapes]
        do = self.close(body, next_, shapes, "stablehlo.return")
        heads = ", ".join(f"{n} = {g}" for n, (g, _) in zip(names, given))
        types = ", ".join(map(kind, shapes))
        extra = self.per_value(shapes, 0.2, scope.free)
        attributes = f" attributes {extra}" if extra else ""
        self.several(
            scope,
            shapes,
            [
                f"stablehlo.while({heads}) : {types}{attributes}",
                "cond {",
                *cond,
                "} do {",
                *do,
                "}",
            ],
            0,
        )

    def choice(self, scope):
        operator, flag = self.rng.choice([("case", "i32"), ("case", "i32"), ("if", "i1")])
        shapes = [self.rng.choice(scope.values)[1] for _ in range(self.rng.randint(1, 2))]
        index = self.name()
        value = "0" if flag == "i32" else "true"
        scope.lines.append(f"{index} = stablehlo.constant dense<{value}> : tensor<{flag}>")
        branches = []
        for _ in range(2 if operator == "if" else self.rng.randint(1, 3)):
            branch = scope.inner(list(scope.values))
            self.fill(branch, self.size())
            returned = [self.give(branch, shape) for shape in shapes]
            branches.append(self.close(branch, returned, shapes, "stablehlo.return"))
        lines = [f'"stablehlo.{operator}"({index}) ({{']
        for branch in branches:
            lines += [*branch, "}, {"]
        lines[-1] = "})"
        lines.append(f"@@: (tensor<{flag}>) -> ({', '.join(map(kind, shapes))})")
        self.several(scope, shapes, lines)

    def named(self, scope):
        given = [self.any(scope) for _ in range(self.rng.randint(1, 2))]
        names, shapes = [self.name() for _ in given], [s for _, s in given]
        inside, made = self.isolated(scope, names, shapes, "sdy.return")
        into = f" in_shardings=[{self.all_on(shapes, scope)}]" * (self.rng.random() < 0.3)
        out = f" out_shardings=[{self.all_on(made, scope)}]" * (self.rng.random() < 0.3)
        heads = ", ".join(f"{n}: {kind(s)}" for n, s in zip(names, shapes))
        types = f"({', '.join(map(kind, shapes))}) -> ({', '.join(map(kind, made))})"
        call = f'sdy.named_computation<"f">({", ".join(n for n, _ in given)})'
        self.several(scope, made, [f"{call}{into}{out} ({heads}) {{", *inside, f"}} : {types}"], 0)

    def all_on(self, shapes, scope):
        return ", ".join(self.sharding(shape, scope.free) for shape in shapes)

    def isolated(self, scope, names, shapes, terminator):
        """The body of something that sees its arguments only, and what it returns."""
        body = scope.inner(list(zip(names, shapes)))
        self.fill(body, self.size())
        returned = list(body.unused) or [self.any(body)[0]]
        of = dict(body.values)
        made = [of[name] for name in returned]
        return self.close(body, returned, made, terminator), made

    def call(self, scope):
        self.call_is(scope)

    def new_call(self, scope):
        """A call of a new function, or of one that fits and is called again."""
        shapes = [s for _, s in scope.values]
        if scope.free != list(range(len(self.mesh))):
            return  # the shardings of a function may name all axes
        fitting = [f for f in self.callable if all(s in shapes for s in f[1])]
        if fitting and self.rng.random() < 0.5:
            function, given, made = self.rng.choice(fitting)
            names = [self.alike(scope, shape) for shape in given]
        else:
            function, names, given, made = self.function(scope)
        types = f"({', '.join(map(kind, given))}) -> ({', '.join(map(kind, made))})"
        line = f"func.call @{function}({', '.join(names)}) @@: {types}"
        self.several(scope, made, [line])

    def function(self, scope):
        given = [self.any(scope) for _ in range(self.rng.randint(1, 2))]
        shapes = [s for _, s in given]
        names = [self.name() for _ in given]
        inside, made = self.isolated(scope, names, shapes, "return")
        function = f"f{len(self.callable)}"
        heads = ", ".join(f"{n}: {kind(s)}{self.on(s, 0.2)}" for n, s in zip(names, shapes))
        kinds = ", ".join(f"{kind(s)}{self.on(s, 0.15)}" for s in made)
        head = f"func.func private @{function}({heads}) -> ({kinds}) {{"
        self.functions.append("\n".join([head, *inside, "}"]))
        self.callable.append((function, shapes, made))
        return function, [n for n, _ in given], shapes, made

    def manual(self, scope):
        """A computation that is written for one cell along some axes."""
        if len(self.meshes) > 1 or not scope.free:
            return
        axes = sorted(self.rng.sample(scope.free, self.rng.randint(1, len(scope.free))))
        free = [axis for axis in scope.free if axis not in axes]
        given = [self.any(scope) for _ in range(self.rng.randint(1, 2))]
        names = [self.name() for _ in given]
        into, locals_ = [], []
        for _, shape in given:
            local, cuts = list(shape), [[] for _ in shape]
            for axis in axes:
                fit = [d for d, n in enumerate(local) if n % self.mesh[axis] == 0]
                if fit and self.rng.random() < 0.6:
                    dim = self.rng.choice(fit)
                    local[dim] //= self.mesh[axis]
                    cuts[dim].append(axis)
            into.append(self.border(shape, cuts, axes, free))
            locals_.append(tuple(local))
        inner = scope.inner(list(zip(names, locals_)), free)
        self.fill(inner, self.size())
        returned = list(inner.unused) or [self.any(inner)[0]]
        of, out, made = dict(inner.values), [], []
        for name in returned:
            shape, cuts = list(of[name]), [[] for _ in of[name]]
            for axis in axes:
                if shape and self.rng.random() < 0.4:
                    dim = self.rng.randrange(len(shape))
                    shape[dim] *= self.mesh[axis]
                    cuts[dim].append(axis)
            out.append(self.border(tuple(shape), cuts, axes, free))
            made.append(tuple(shape))
        inside = self.close(inner, returned, [of[n] for n in returned], "sdy.return")
        heads = ", ".join(f"{n}: {kind(s)}" for n, s in zip(names, locals_))
        types = f"({', '.join(kind(s) for _, s in given)}) -> ({', '.join(map(kind, made))})"
        head = (
            f"sdy.manual_computation({', '.join(n for n, _ in given)}) "
            f"in_shardings=[{', '.join(into)}] out_shardings=[{', '.join(out)}] "
            f"manual_axes={{{', '.join(f'{chr(34)}a{a}{chr(34)}' for a in axes)}}} ({heads}) {{"
        )
        self.several(scope, made, [head, *inside, f"}} : {types}"], 0)

    def border(self, shape, cuts, axes, free):
        """A sharding at the border: the manual axes first, then some free ones."""
        found = random_sharding(self.rng, len(shape), self.mesh)._replace(unreduced=())
        manual = [tuple((axis, 1, self.mesh[axis]) for axis in cut) for cut in cuts]
        found = found._replace(
            axes=tuple(m + kept(p, free) for m, p in zip(manual, found.axes)),
            replicated=kept(found.replicated, free),
            unreduced=kept(found.unreduced, free),
        )
        free_axes = found._replace(axes=tuple(kept(pieces, free) for pieces in found.axes))
        return sharding_text(found, self.mesh, self.levels(free_axes))


KINDS = ("need_replication", "permutation", "blocked_propagation")


def kept(pieces, free):
    """The pieces of those axes; what is side by side now is one."""
    found = []
    for piece in pieces:
        if piece[0] in free:
            append(found, piece)
    return tuple(found)


def kind(shape):
    if isinstance(shape, str):
        return f"tensor<{shape}>"
    return "tensor<" + "".join(f"{n}x" for n in shape) + "f32>"
