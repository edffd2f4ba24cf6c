"""The worked examples that every carrier of the rules plays, also the slow ones: at least four of each system."""

from __future__ import annotations

from tests.conformance.agreement import ON_TABLES

MAIN_IDS = {
    "WCF on MSMQ 4.0": (
        "WCF-E1",
        "WCF-E3 k=9",
        "WCF-E4 Fault",
        "WCF-E4 Drop expired",
        "WCF-E4 Reject",
        "WCF-E6",
        "WCF-E8 Move",
        "WCF-E10 receive context",
    ),
    "WCF reading a poison sub-queue": ("POI-E1", "POI-E2", "POI-E5", "POI-E7"),
    "WCF on MSMQ 3.0": ("M3-E1", "M3-E2 MRC 7, delay 1 h, RRC 0, Drop", "M3-E2 MRC 2, RRC 5, Fault", "M3-E3 Fault, restart"),
    "Service Broker": ("SB-E1", "SB-E2", "SB-E3 queue", "SB-E5 five in all", "SB-E9 END then ON"),
    "default messaging": ("DMP-E1", "DMP-E5 destination_blocked = true", "DMP-E6 Specify errQ, missing", "DMP-E8 None, stop modelled"),
    "activation specification": ("WMQ-E1", "WMQ-E3 early hand-out 1", "WMQ-E5 ticked 3 3", "WMQ-E7 missing, discard", "WMQ-E8"),
    "listener port": ("LP-E2", "LP-E3 started again", "LP-E4", "LP-E9"),
    "z/OS": ("ZOS-E3 HARDENBO=NO", "ZOS-E3 HARDENBO=YES", "ZOS-E8", "LP-E4 as an activation specification"),
}
"""By system, the ids of its examples."""

MAIN = [next(example for example in ON_TABLES if example.id == name) for names in MAIN_IDS.values() for name in names]
