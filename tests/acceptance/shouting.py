"""An agents file: a lead that has each word of its prompt shouted."""

AGENTS = """
from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        for word in ctx.prompt.split():
            ctx.delegate("shouter", word)
        ctx.wait_for("all")
        return "waiting"
    return " ".join(sorted(result.result for result in ctx.all_results))


@agent("shouter")
def shouter(ctx):
    return ctx.prompt.upper()
"""
