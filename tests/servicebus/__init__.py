"""The double of Azure Service Bus: an AMQP 1.0 server and an administration API that the real client talks to.

It runs as a process of its own. It holds messages, locks and delivery counts as the service does, and refuses what the
service would refuse. `servicebus.double` starts it.
"""
