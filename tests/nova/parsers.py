"""Reads nova.conf files with oslo.config, and their PCI options with Nova's own parsers; prints what Nova understood.

Nova depends on some 150 packages that its parsers do not use. Stand-ins take the places of those modules.
"""

import json
import sys
import types
from unittest import mock

from oslo_config import cfg


class StandIn(types.ModuleType):
    """A module with whatever name is asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


def stand_in(name: str) -> StandIn:
    """Puts a stand-in in a module's place."""
    module = StandIn(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    setattr(sys.modules[parent], leaf, module)
    return module


def options() -> cfg.ConfigOpts:
    """The options, as nova.conf.pci and nova.conf.scheduler declare them."""
    conf = cfg.ConfigOpts()
    conf.register_opts(
        [
            cfg.MultiStrOpt("alias", default=[]),
            cfg.MultiStrOpt("device_spec", default=[], deprecated_name="passthrough_whitelist"),
            cfg.BoolOpt("report_in_placement", default=False),
        ],
        "pci",
    )
    conf.register_opts(
        [cfg.ListOpt("enabled_filters", default=[]), cfg.BoolOpt("pci_in_placement", default=False)],
        "filter_scheduler",
    )
    return conf


def main() -> None:
    """Parses each file; one that Nova refuses ends it with Nova's words."""
    import nova  # noqa: PLC0415

    assert nova
    conf = options()
    stand_in("nova.conf").CONF = conf
    for name in ("context", "network", "network.model", "objects", "objects.fields", "i18n", "exception"):
        stand_in(f"nova.{name}")
    sys.modules["nova.i18n"]._ = str
    fields = sys.modules["nova.objects.fields"]
    fields.PciDeviceType = types.SimpleNamespace(STANDARD="type-PCI", SRIOV_PF="type-PF", SRIOV_VF="type-VF", VDPA="vdpa")
    policies = ("required", "legacy", "preferred", "socket")
    fields.PCINUMAAffinityPolicy = types.SimpleNamespace(LEGACY="legacy", ALL=policies)
    for name in ("PciInvalidAlias", "PciConfigInvalidSpec", "PciDeviceInvalidDeviceName"):
        setattr(sys.modules["nova.exception"], name, type(name, (Exception,), {"__init__": refused}))
    for name in ("PciDeviceWrongAddressFormat", "PciDeviceInvalidAddressField"):
        setattr(sys.modules["nova.exception"], name, type(name, (Exception,), {"__init__": refused}))

    from nova.pci import request, whitelist  # noqa: PLC0415

    for path in sys.argv[1:]:
        conf(["--config-file", path], project="nova")
        request.get_alias_from_config.cache_clear()
        aliases = request.get_alias_from_config()
        specs = whitelist.Whitelist(conf.pci.device_spec).specs
        understood = {
            "aliases": {name: alias[1] for name, alias in aliases.items()},
            "devices": [[spec.vendor_id, spec.product_id, spec.dev_spec_conf["address"]] for spec in specs],
            "filters": conf.filter_scheduler.enabled_filters,
            "pci_in_placement": conf.filter_scheduler.pci_in_placement,
            "report_in_placement": conf.pci.report_in_placement,
        }
        print(json.dumps(understood))


def refused(self: Exception, *words: object, **more: object) -> None:
    """Nova's exceptions take a reason by name."""
    Exception.__init__(self, *words, *more.values())


main()
