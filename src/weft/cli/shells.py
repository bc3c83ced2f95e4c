"""Completion scripts for bash, zsh and fish: tables from the parser, and a little of each shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.cli.completion import Argument, Level

NOTE = "# Made by `weft completion {}`: make it again when Weft is updated."


# -- bash -----------------------------------------------------------------------------------------

BASH = r"""
# Tables: what may stand behind a command, and behind an option.
_weft_words() {
    case "$1" in
@WORDS@
    esac
}
_weft_values() {
    case "$1" in
@VALUES@
    *) echo 0 ;;
    esac
}

_weft() {
    local IFS=$'\n' cur=${COMP_WORDS[COMP_CWORD]} path=weft option= place=0 i word kind words
    # bash cuts --option=value into three words.
    [[ $cur == = ]] && cur=
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == = ]]; then
            continue
        elif [[ $word == -* ]]; then
            option=$word
            kind=$(_weft_values "$path $option" | head -n 1)
            [[ $kind == 0 ]] && option=
        elif [[ -n $option ]]; then
            kind=$(_weft_values "$path $option" | head -n 1)
            [[ $kind == 1 ]] && option=
        elif [[ -n $(_weft_words "$path $word") ]]; then
            path="$path $word"
        else
            place=$((place + 1))
        fi
    done
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$(_weft_words "$path" | grep '^-')" -- "$cur"))
        return
    fi
    if [[ -n $option ]]; then
        words=$(_weft_values "$path $option")
    else
        words=$(_weft_values "$path $place")
        [[ $words == 0 ]] && words=$'1\n'$(_weft_words "$path" | grep -v '^-')
    fi
    COMPREPLY=($(compgen -W "$(tail -n +2 <<<"$words" | grep -v '^/$')" -- "$cur"))
    if grep -q '^/$' <<<"$words"; then
        compopt -o filenames 2>/dev/null
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
complete -F _weft weft
"""


def bash(levels: list[Level]) -> str:
    """The script for bash, 3.2 and later."""
    words, values = [], []
    for level in levels:
        path = " ".join(level.path)
        known = [*level.below, *(name for one in level.options for name in one.names)]
        words.append(f"    {shlex.quote(path)}) printf '%s\\n' {_quoted(known)} ;;")
        for one in (one for one in level.options if one.values != 0):
            keys = "|".join(shlex.quote(f"{path} {name}") for name in one.names)
            values.append(f"    {keys}) printf '%s\\n' {_quoted(_values(one))} ;;")
        for place, one in enumerate(level.positionals):
            rest = " [0-9]*" if one.values is None else f" {place}"
            key = shlex.quote(path) + rest.replace(" ", "\\ ")
            values.append(f"    {key}) printf '%s\\n' {_quoted(_values(one))} ;;")
    made = BASH.replace("@WORDS@", "\n".join(words)).replace("@VALUES@", "\n".join(values))
    return NOTE.format("bash") + made


def _values(one: Argument) -> list[str]:
    """How many values, then the words, then / where files may stand."""
    count = "many" if one.values is None else str(one.values)
    return [count, *one.words, *(["/"] if one.takes_files else [])]


def _quoted(words: list[str]) -> str:
    return " ".join(map(shlex.quote, words))


# -- zsh ------------------------------------------------------------------------------------------

ZSH = """\
_weft_or_files() {
    _alternative "words:word:($*)" 'files:file:_files'
}"""
# Read by `fpath` it is the function; sourced, it says what it completes.
ZSH_END = """\
if [ "$funcstack[1]" = "_weft" ]; then
    _weft "$@"
else
    compdef _weft weft
fi"""


def zsh(levels: list[Level]) -> str:
    """The script for zsh, by its `_arguments`."""
    parts = ["#compdef weft", NOTE.format("zsh"), ZSH, *map(_zsh_function, levels)]
    return "\n\n".join([*parts, ZSH_END])


def _zsh_function(level: Level) -> str:
    specs = [*map(_zsh_option, level.options), *_zsh_places(level)]
    body = " \\\n        ".join(["_arguments -C -s", *specs])
    name = "_".join(level.path)
    if not level.below:
        return f"_{name}() {{\n    {body}\n}}"
    told = "\n            ".join(
        shlex.quote(f"{word.replace(':', chr(92) + ':')}:{text}")
        for word, text in level.below.items()
    )
    cases = "\n            ".join(f"{word}) _{name}_{word} ;;" for word in level.below)
    return f"""_{name}() {{
    local curcontext=$curcontext context state state_descr line
    typeset -A opt_args
    {body}
    case $state in
    command)
        local -a known=(
            {told}
        )
        _describe command known
        ;;
    behind)
        case $line[1] in
            {cases}
        esac
        ;;
    esac
}}"""


def _zsh_option(one: Argument) -> str:
    text = f"[{_zsh_text(one.help)}]"
    value = "" if one.values == 0 else f":{_zsh_text(one.title)}:{_zsh_action(one)}"
    if one.values is None:  # up to the next option
        value = f":*-*{value}"
    alone = f"({' '.join(one.names)})" if len(one.names) > 1 else ""
    if alone:
        names = ",".join(one.names)
        return f"{shlex.quote(alone)}{{{names}}}{shlex.quote(text + value)}"
    return shlex.quote(f"*{one.names[0]}{text}{value}")


def _zsh_places(level: Level) -> Iterator[str]:
    if level.below:
        yield "'1:command:->command'"
        yield "'*::argument:->behind'"
    for place, one in enumerate(level.positionals, 1):
        key = "*" if one.values is None else str(place)
        yield shlex.quote(f"{key}:{_zsh_text(one.title)}:{_zsh_action(one)}")


def _zsh_action(one: Argument) -> str:
    words = " ".join(one.words)
    if one.takes_files and words:
        return f" _weft_or_files {words}"
    return f"({words})" if words else "_files" if one.takes_files else " "


def _zsh_text(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


# -- fish -----------------------------------------------------------------------------------------

FISH = """
# The command that stands on the line so far, without options: `weft store write`.
function __weft_path
    set -l path weft
    for word in (commandline -opc)[2..-1]
        if contains -- "$path $word" @PATHS@
            set path "$path $word"
        end
    end
    echo $path
end
function __weft_at
    test (__weft_path) = "$argv"
end
complete -c weft -f
"""


def fish(levels: list[Level]) -> str:
    """The script for fish."""
    paths = _quoted([" ".join(level.path) for level in levels[1:]])
    lines = [NOTE.format("fish") + FISH.replace("@PATHS@", paths)]
    for level in levels:
        where = _fish_text(f"__weft_at {' '.join(level.path)}")
        for word, text in level.below.items():
            lines.append(f"complete -c weft -n {where} -a {word} -d {_fish_text(text)}")
        lines += [f"complete -c weft -n {where} {_fish_option(one)}" for one in level.options]
        lines += [f"complete -c weft -n {where} {_fish_place(one)}" for one in level.positionals]
    return "\n".join(lines)


def _fish_option(one: Argument) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in one.names]
    return " ".join([*names, *_fish_values(one, "-x"), f"-d {_fish_text(one.help)}"])


def _fish_place(one: Argument) -> str:
    return " ".join(_fish_values(one, ""))


def _fish_values(one: Argument, exclusive: str) -> Iterator[str]:
    if one.values == 0:
        return
    yield ("-r -F" if exclusive else "-F") if one.takes_files else exclusive or "-f"
    if one.words:
        yield f"-a {_fish_text(' '.join(one.words))}"


def _fish_text(text: str) -> str:
    """Quoted for fish, in which only the backslash and the quote are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[list[Level]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
