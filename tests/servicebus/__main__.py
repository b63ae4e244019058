"""The process: `python -m servicebus` says its ports in one line of JSON, and runs until its standard input ends."""

import asyncio
import json
import sys

from aiohttp import web

from .administration import Administration
from .broker import Broker
from .control import Control
from .links import Links
from .tokens import Key


async def serve(key: Key) -> None:
    broker = Broker(key, Links)
    await broker.start()
    runners = [web.AppRunner(each.application()) for each in (Administration(broker), Control(broker))]
    ports = []
    for runner in runners:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(runner.addresses[0][1])
    print(json.dumps({"amqp": broker.port, "administration": ports[0], "control": ports[1]}), flush=True)
    time_passes = asyncio.create_task(broker.run())
    # Who started this process holds its standard input: it cannot outlive a test run that was killed.
    await asyncio.to_thread(sys.stdin.read)
    time_passes.cancel()
    broker.stop()
    for runner in runners:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(Key(sys.argv[1], sys.argv[2])))
