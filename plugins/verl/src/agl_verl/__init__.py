"""The verl driver: agents' rows trained by verl's own trainer, unforked.

Two processes, two environments if wanted. The *driver* (``driver``) lives in the training command beside
store, gateway and runner, and imports no verl. Its child (``agl_verl.inside``) is verl: Ray, FSDP, the V1
trainer, an engine. They speak over one loopback channel (``channel``): the child asks for the rows of each
step.
"""
