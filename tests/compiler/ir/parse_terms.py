"""Reading index terms and conditions: the tokenizer and the lower half of the parser. The upper half is `parse.py`.

Terms and conditions are rebuilt by their public constructors, so what is read is in canonical form whatever was
written: hand-written text need not be. `#` starts a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, Self, TypeVar

from polyrhythm.compiler.ir.conditions import FALSE, TRUE, Condition, conjunction, disjunction, eq, ge, gt, le, lt, ne
from polyrhythm.compiler.ir.terms import Symbol, Term, maximum, minimum

T = TypeVar("T")

_TOKEN = re.compile(
    r"""(?P<space> [ \t\r]+ | \#[^\n]* )
      | (?P<newline> \n )
      | (?P<float> \d+ \. \d* (?:e[+-]?\d+)? | \d+ e [+-]? \d+ )
      | (?P<int> \d+ )
      | (?P<word> [^\W\d]\w* (?:\.\w+)* )
      | (?P<quoted> ` (?:[^`\\\n]|\\.)* ` )
      | (?P<string> " (?:[^"\\\n]|\\.)* " )
      | (?P<mark> \+: | // | <= | >= | == | != | [-+*%<>=()\[\]{},:@] )""",
    re.VERBOSE,
)

_COMPARE: dict[str, Callable[[Term, Term], Condition]] = {
    ">=": ge,
    ">": gt,
    "<=": le,
    "<": lt,
    "==": eq,
    "!=": ne,
}


class ParseError(ValueError):
    """Text that is not the text of a graph; `line` and `column` count from 1.

    >>> parse_term("2 *", {})
    Traceback (most recent call last):
    tests.compiler.ir.parse_terms.ParseError: line 1, column 4: expected an index term, not the end of the line
    """

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {what}")
        self.line, self.column = line, column


def parse_term(source: str, symbols: Mapping[str, Symbol]) -> Term:
    """An index term, given its symbols by name.

    >>> t = Symbol("t", "dim")
    >>> parse_term("(2*t + 3) // 2 - 1", {"t": t}) is Term.of(t)
    True
    """
    return TermParser(source, symbols).only(TermParser.term)


def parse_condition(source: str, symbols: Mapping[str, Symbol]) -> Condition:
    """A condition on index terms, given their symbols by name.

    >>> str(parse_condition("t > 0 and not_t == t", {"t": Symbol("t", "dim"), "not_t": Symbol("not_t", "dim")}))
    'not_t == t and t >= 1'
    """
    return TermParser(source, symbols).only(TermParser.condition)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        ends = {"newline": "the end of the line", "end": "the end of the text"}
        return ends.get(self.kind, repr(self.text))


def _tokens(source: str) -> list[Token]:
    found: list[Token] = []
    line, line_start, position = 1, 0, 0
    source = source.rstrip() + "\n"
    while position < len(source):
        match = _TOKEN.match(source, position)
        column = position - line_start + 1
        if match is None:
            raise ParseError(f"{source[position]!r} begins nothing known", line, column)
        kind = match.lastgroup or ""
        if kind == "newline":
            if found and found[-1].kind != "newline":
                found.append(Token(kind, "\n", line, column))
            line, line_start = line + 1, match.end()
        elif kind != "space":
            found.append(Token(kind, match.group(), line, column))
        position = match.end()
    return [*found, Token("end", "", line, 1)]


class TermParser:
    """A place in a list of tokens, and a method per rule of the grammar."""

    def __init__(self, source: str, symbols: Mapping[str, Symbol]) -> None:
        self.tokens, self.position = _tokens(source), 0
        self.symbols = dict(symbols)

    # Tokens.

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def fail(self, what: str, at: Token | None = None) -> NoReturn:
        at = at or self.token
        raise ParseError(what, at.line, at.column)

    def next(self) -> Token:
        token = self.token
        self.position += token.kind != "end"
        return token

    def follows(self, *texts: str) -> bool:
        """Whether the next tokens are these."""
        ahead = self.tokens[self.position : self.position + len(texts)]
        kinds = all(token.kind in ("mark", "word") for token in ahead)
        return kinds and [token.text for token in ahead] == list(texts)

    def accept(self, word: str) -> bool:
        found = self.follows(word)
        self.position += found
        return found

    def expect(self, word: str) -> None:
        if not self.accept(word):
            self.fail(f"expected {word!r}, not {self.token}")

    def of_kind(self, what: str, *kinds: str) -> str:
        if self.token.kind not in kinds:
            self.fail(f"expected {what}, not {self.token}")
        return self.next().text

    def end_of_line(self) -> None:
        self.of_kind("the end of the line", "newline", "end")

    def several(self, item: Callable[[], T], close: str) -> list[T]:
        """Items between commas up to a closing mark; a comma may come last."""
        found: list[T] = []
        while not self.accept(close):
            if found:
                self.expect(",")
                if self.accept(close):
                    break
            found.append(item())
        return found

    def only(self, rule: Callable[[Self], T]) -> T:
        found = rule(self)
        self.end_of_line()
        return found

    def name(self) -> str:
        at, found = self.token, self.of_kind("a name", "word", "quoted")
        return self._decoded(f'"{found[1:-1]}"', at) if at.kind == "quoted" else found

    def string(self) -> str:
        at = self.token
        return self._decoded(self.of_kind("a string", "string"), at)

    def _decoded(self, literal: str, at: Token) -> str:
        try:
            return str(json.loads(literal))
        except ValueError:
            self.fail(f"{at} has an escape that JSON does not have", at)

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        return sign * int(self.of_kind("an integer", "int"))

    # Terms and conditions, loosest first: or, and, comparison, sum, product, atom.

    def term(self) -> Term:
        at, found = self.token, self._sum()
        return found if isinstance(found, Term) else self.fail("expected an index term, not a condition", at)

    def condition(self) -> Condition:
        at, found = self.token, self.index()
        return found if isinstance(found, Condition) else self.fail("expected a condition, not an index term", at)

    def index(self) -> Term | Condition:
        return self._junction("or", disjunction, lambda: self._junction("and", conjunction, self._comparison))

    def _junction(
        self, word: str, join: Callable[..., Condition], part: Callable[[], Term | Condition]
    ) -> Term | Condition:
        at, first = self.token, part()
        if not self.follows(word):
            return first
        parts = [self._must_be(Condition, first, at)]
        while self.accept(word):
            at = self.token
            parts.append(self._must_be(Condition, part(), at))
        return join(*parts)

    def _comparison(self) -> Term | Condition:
        at, left = self.token, self._sum()
        if self.token.text not in _COMPARE:
            return left
        compare = _COMPARE[self.next().text]
        return compare(self._must_be(Term, left, at), self.term())

    def _sum(self) -> Term | Condition:
        at, total = self.token, self._product()
        while self.token.text in ("+", "-"):
            sign = 1 if self.next().text == "+" else -1
            next_at = self.token
            total = self._must_be(Term, total, at) + self._must_be(Term, self._product(), next_at) * sign
        return total

    def _product(self) -> Term | Condition:
        at, total = self.token, self._factor()
        while self.token.text in ("*", "//", "%"):
            operator, next_at = self.next(), self.token
            left, right = self._must_be(Term, total, at), self._must_be(Term, self._factor(), next_at)
            if operator.text == "*":
                total = left * right
            elif not right.is_constant or right.constant <= 0:
                self.fail(f"an index is divided by positive integers only, not by {right}", next_at)
            else:
                total = left // right.constant if operator.text == "//" else left % right.constant
        return total

    def _factor(self) -> Term | Condition:
        at = self.token
        if self.accept("-"):
            return -self._must_be(Term, self._factor(), at)
        if self.accept("("):
            inner = self.index()
            self.expect(")")
            return inner
        if self.token.kind == "int":
            return Term(int(self.next().text))
        if self.token.kind not in ("word", "quoted"):
            self.fail(f"expected an index term, not {at}")
        if self.follows("min", "(") or self.follows("max", "("):
            extremum = minimum if self.next().text == "min" else maximum
            self.next()
            arguments = self.several(self.term, ")")
            return extremum(*arguments) if arguments else self.fail("min and max need an argument", at)
        if self.accept("true"):
            return TRUE
        return FALSE if self.accept("false") else Term.of(self.symbol())

    def _must_be(self, wanted: type[T], value: Term | Condition, at: Token) -> T:
        if isinstance(value, wanted):
            return value
        self.fail(f"expected {'an index term' if wanted is Term else 'a condition'} here", at)

    def symbol(self) -> Symbol:
        at, name = self.token, self.name()
        return self.symbols[name] if name in self.symbols else self.fail(f"no symbol {name} is declared", at)
