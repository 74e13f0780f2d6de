"""`tidegs completion`: a script for bash, made from the parsers themselves.

Invariant: the script starts no Python when a key is pressed; what it knows is what the parsers had when it was printed.
"""

from __future__ import annotations

import argparse

HELP = (
    "Print a script that completes commands, options and their values in bash. It is fixed text, so completing is "
    "instant; print it again after an update."
)
EPILOG = """examples:
  source <(tidegs completion bash)               for this shell
  tidegs completion bash > ~/.local/share/bash-completion/completions/tidegs"""

_SCRIPT = """# bash completion for tidegs
_tidegs() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}} $before" in
{values}
        *) case "${{COMP_WORDS[1]}}" in
{options}
            esac
            [[ $word == -* ]] || words="" ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _tidegs tidegs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash",), help="the shell")


def run(args: argparse.Namespace) -> int:
    print(bash_script(), end="")
    return 0


def bash_script() -> str:
    """Completes files where nothing else is known."""
    from tidegs.cli.main import COMMANDS, build_parser

    options, values = [], []
    for command in COMMANDS:
        actions = _actions(build_parser(command), command)
        flags = [flag for action in actions for flag in _flags(action)]
        options.append(f'            {command}) words="{" ".join(flags)}" ;;')
        for action in actions:
            choices = " ".join(map(str, action.choices or ()))
            if choices and action.option_strings:
                patterns = "|".join(f'"{command} {flag}"' for flag in _flags(action))
                values.append(f'        {patterns}) words="{choices}" ;;')
            elif choices:
                values.append(f'        "{command} {command}") words="{choices}" ;;')
    return _SCRIPT.format(commands=" ".join(COMMANDS), options="\n".join(options), values="\n".join(values))


def _actions(parser: argparse.ArgumentParser, command: str) -> list[argparse.Action]:
    """The arguments of a command that its help shows."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: list[argparse.Action] = action.choices[command]._actions
            return [a for a in found if a.help != argparse.SUPPRESS]
    return []


def _flags(action: argparse.Action) -> list[str]:
    return [flag for flag in action.option_strings if flag.startswith("--")]
