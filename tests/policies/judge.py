"""Runs a ValidatingAdmissionPolicy as an API server does: its matchConditions, its variables in their order, its validations.

Standard input is JSON: {"policy": the policy's spec, "requests": [{"request": …, "object": …, "oldObject": …}]}. Standard output is a
list with a text for each request: "passed over" where a condition does not hold, "accepted", or the message of what refuses it. What
cannot be evaluated is "error: …", which failurePolicy Fail makes a refusal.
"""

import json
import sys

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

NAMES = ("request", "object", "oldObject", "variables")
ENVIRONMENT = cel.NewEnv(
    variables={name: cel.Type.DYN for name in NAMES},
    extensions=[ext_optional.ExtOptional()],
)


def value(expression, known):
    """What an expression is, with these names."""
    found = ENVIRONMENT.compile(expression).eval(data=known)
    if found.type() == cel.Type.ERROR:
        raise ValueError(f"{expression}: {found.value()}")
    return found.plain_value()


def judged(policy, asked):
    """What comes of one request."""
    known = {name: asked.get(name) for name in NAMES}
    known["variables"] = {}
    for condition in policy.get("matchConditions", []):
        if value(condition["expression"], known) is not True:
            return "passed over"
    for variable in policy.get("variables", []):
        known["variables"][variable["name"]] = value(variable["expression"], known)
    for validation in policy["validations"]:
        if value(validation["expression"], known) is not True:
            return validation["message"]
    return "accepted"


def told(policy, asked):
    """The same, as a text in any case."""
    try:
        return judged(policy, asked)
    except Exception as error:  # Each error refuses, whatever it is.
        return f"error: {error}"


def main():
    task = json.load(sys.stdin)
    json.dump([told(task["policy"], asked) for asked in task["requests"]], sys.stdout)


main()
