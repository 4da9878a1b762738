"""Answers one prompt through stillwarm, and saves the session: saver.py URL DIR PROMPT-FILE TOKENS.

Prints the seconds until the answer, and the tokens of the prompt that were computed for it. The save and
the tokens that stillwarm computes to prove it come after the answer, and do not count.
"""

import json
import sys
import time

from stillwarm.server import DEFAULT_SAMPLER, LlamaServer
from stillwarm.session import Session
from stillwarm.compat import ServerProfile

url, folder, path, tokens = sys.argv[1:]
prompt = open(path).read()
server = LlamaServer(url)
profile = ServerProfile(model_sha256="0" * 64, flash_attn="on", cache_type_k="f16", cache_type_v="f16", swa_full=False, ctx_size=server.ctx_size())
session = Session(server, profile, folder)
began = time.monotonic()
if session._bin_path("chat").exists():
    session.restore("chat")
answer = server.completion(prompt, int(tokens), sampler=dict(DEFAULT_SAMPLER, ignore_eos=True))
took = time.monotonic() - began
session._live_prefix["chat"] = prompt + answer["content"]
session.save("chat", generated_tokens=int(tokens))
print(json.dumps({"text": answer["content"], "seconds": took, "computed": answer["timings"]["prompt_n"], "cached": answer["timings"]["cache_n"]}))
