"""Scripts and JSON at the edges of what Lua, lua-cjson and the server make of them."""

from __future__ import annotations

#: Texts that are JSON, or nearly.
JSON = [
    *[
        *("", "{", '{"a"}', '{"a":}', '{"a":1,}', "[1 2]", "tru", "nul", "-", "01", "1e", '"abc'),
        *('"\\x"', '"\\u12"', "1 2"),
    ],
    *[
        *("{1:2}", "[1,]", "\x00\x00", '"\\ud800"', '"a\tb"', ".5", "+1", "1.", "[--1]", '{"a":"b'),
        *("[[[", " ", "1.5e3", "-0"),
    ],
    *[
        "[true,false,null]",
        '{"a":{"b":[1,{"c":"\\u00e9\\ud83d\\ude00"}]}}',
        '[1,"x\\',
        '{"a" 1}',
        '{"a":1 "b"}',
        "[{]",
    ],
    *[
        *("[tru", '{"x":nul', '"\\', '[1,"\\u00"]', '{"a\\q":1}', "{true:1}", "{null"),
        *('"\\ud800\\u0041"', '"\\udc00"', "[1}"),
    ],
    *[
        '{"a":1]',
        "\ufeff1",
        "1 ",
        "1x",
        '"a"b',
        "[" * 1001,
        '{"":""}',
        "[[],{}]",
        "-1e-7",
        "123456789012345678",
    ],
]
#: Values in Lua that are to become JSON.
VALUES = [
    *[
        *("{}", "{1,2,nil,4}", "{[1]='a',[5]='b',x=1}", "{[0]=1}", "{[1.5]=1}", "{[true]=1}"),
        *("function() end", "{a=function() end}"),
    ],
    *[
        *("0.1+0.2", "-0", "1/0", "0/0", "true", "nil", "{cjson.null,{a=cjson.null}}"),
        *("{[1]=1,[11]=2}", "{[4]=1,[11]=2,[3]=1}"),
    ],
    *[
        "{[1]=1,[10]=2}",
        "'\\1\\31\\127\\200/\"\\\\'",
        "{{},{{}},{a={}}}",
        "1e15",
        "123456789012",
        "1e100",
        "{a={b={c=1}}}",
    ],
]
#: Bodies of scripts: what they answer, and how they fail.
BODIES = [
    *[
        *("error('x')", "error({err='A b'})", "error({})", "error()", "error(12)"),
        *("local x; return x.y", "foo=1", "return foo"),
    ],
    *["return redis.error_reply('x')", "return redis.error_reply('x y')", "return redis.error_reply('-x y')"],
    *["return redis.error_reply()", "return {err='a b'}", "return {ok='x'}", "return 3.99", "return -3.99"],
    *[
        "return {1,2.7,-2.7,'a',nil,3}",
        "return {1,false,true,{ok='x'}}",
        "return {a=1}",
        "return _G",
        "return {{1,{2}},{}}",
    ],
    *[
        "local a = redis.call() return a",
        "local a = redis.call('SET','n',{}) return a",
        "local a = redis.pcall({}) return a",
    ],
    *[
        f"local a = redis.call('SET','n',{number}) return redis.call('GET','n')"
        for number in (
            *("0.1", "1e20", "-1/3", "1.5e-7", "1e17", "123456.789", "1e-5", "-0.000012", "1e21+1"),
            *("2^53", "1/0"),
        )
    ],
    *["local x = = 1", "redis.x=1", "cjson.x=1", "return string.rep()", "local a = cjson.decode() return a"],
    "local ok,e=pcall(function() error({err='x y'}) end) return {type(e),tostring(e)}",
    "local ok,e=pcall(error, {err='x y'}) return {type(e),tostring(e)}",
    "local ok,e=pcall(error, {x='y'}) return {type(e)}",
    "local ok,e=pcall(function() error('x') end) return {type(e),tostring(e)}",
    "local t=setmetatable({},{__index=redis}) local a=t.call('PING') return a",
    "local function f()\n local a = redis.call('GET') return a end\n\nlocal a = f() return a",
    *[
        "return math.floor(2.5)",
        "return tostring(redis.call('GET','none'))",
        "local a = redis.call('HMGET','none','a','b') return a",
    ],
    *[
        "return tostring(cjson.null)",
        "return type(cjson.null)",
        "return cjson.null",
        "return {1,cjson.null,2}",
    ],
    *[
        "local t={3,1,2} table.sort(t) return t",
        "return #ARGV",
        "return KEYS[1]",
        "return type(print)",
        "return type(KEYS)",
    ],
    *[
        "return unpack({1,2})",
        "return next({})",
        "local a,b=pcall(error,'x') return {tostring(a),b}",
        "return type(_G)",
    ],
]


def probes() -> list[tuple[str, ...]]:
    """All as commands."""
    return [
        *(
            (
                "EVAL",
                "local ok,e = pcall(cjson.decode, ARGV[1]) return {tostring(ok), type(e), ok and cjson.encode(e) or e}",
                "0",
                text,
            )
            for text in JSON
        ),
        *(("EVAL", "local a = cjson.decode(ARGV[1]) return cjson.encode(a)", "0", text) for text in JSON),
        *(("EVAL", f"local a = cjson.encode({value}) return a", "0") for value in VALUES),
        *(("EVAL", body, "0") for body in BODIES),
        ("EVAL", "return {KEYS[1], ARGV[1]}", "1", "k", "a"),
        *(("EVAL", "return 1", *words) for words in ((), ("x",), ("2", "a"), ("-1",))),
        *(("EVALSHA", "abc", *words) for words in ((), ("0",))),
        *(("SCRIPT", *words) for words in (("EXISTS", "abc"), ("LOAD", "return 1"), ("LOAD", "return = 1"))),
    ]
