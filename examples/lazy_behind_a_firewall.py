"""A lazy worker, which sleeps until the middleware wakes it: one port is open, to the middleware alone.

Behind NAT the address that the middleware has to reach is another than the one that is bound: give it as
`KIWI_ADVERTISED_IP` and `KIWI_ADVERTISED_PORT`. Try the way with `kiwi-worker probe HOST:PORT`.
"""

from kiwi_worker import Worker

worker = Worker(
    run_mode="lazy",
    wakeup_probe_service_port=55222,  # UDP and TCP
    probe_allow=["127.0.0.1", "10.1.0.0/16"],  # where the middleware is
    safety_interval=600,  # look for work every ten minutes anyway: datagrams get lost
)


@worker.method
def nightly_report(day: str) -> str:
    return f"report of {day}"


if __name__ == "__main__":
    worker.run()
