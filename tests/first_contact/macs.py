"""Macs that are well and ill, as scripts, and what the kit must say of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ane.testing import INTEL, TRANSLATED, VIRTUAL, DeviceRule, Failure, Mac, Rewrite, Script

NO_XCODE = Mac(compiler="")


@dataclass(frozen=True)
class Case:
    """A script, and sentences of the table by step."""

    script: Script
    sentences: Mapping[str, str]


MACS: Mapping[str, Case] = {
    "well": Case(
        Script(),
        {
            "machine": "Apple M4 Max, macOS 26.1 (25B78): Core ML lists CPU, GPU, ANE, 16 ANE",
            "plans": "3 of 3 compute ops on ANE",
            "image": "float32, differs by 0",
            "int8": "int8 [-8, 0, 0, 0, 0, 0, 0, 0], expected [-8.0, -7.0,",
            "gates": "placement passed",
            "evidence": "recorded: conv-iOS18.fidelity.json, conv-iOS18.placement.json",
            "arithmetic": "26 of 26 programs",
        },
    ),
    "virtual": Case(
        Script(VIRTUAL),
        {
            "machine": "This is a virtual machine (VirtualMac2,1), which proves nothing of the ANE",
            "arithmetic": "not run: This is a virtual machine (VirtualMac2,1)",
            "evidence": "recorded: nothing of the ANE",
            "gates": "the gates ran on the CPU alone",
        },
    ),
    "translated": Case(
        Script(TRANSLATED),
        {"machine": "This is a Mac whose Python runs under Rosetta"},
    ),
    "no-ane": Case(
        Script(INTEL),
        {
            "machine": "This is a Mac for which Core ML lists no Neural Engine (Macmini8,1)",
            "plans": "3 of 3 compute ops on CPU",
        },
    ),
    "no-usage": Case(
        Script(devices=(DeviceRule("none"),)),
        {"plans": "no usage for any of 3 compute ops", "gates": "placement unproven"},
    ),
    "folding": Case(
        Script(rewrites=(Rewrite("relu*", "fold"), Rewrite("first*", "cast"))),
        {"compilers": "folds or renames 1 relu", "gates": "1 op folded by the compiler"},
    ),
    "crashing": Case(
        Script(failures=(Failure("state", "", times=None, effect="abort"),)),
        {
            "state-reads": "Core ML ended the process (SIGABRT)",
            "state-error": "Core ML ended the process (SIGABRT)",
            "gates": "placement passed",
        },
    ),
    "hanging": Case(
        Script(
            NO_XCODE,
            failures=(Failure("plan", "", times=None, effect="hang", path="*broken*"),),
        ),
        {
            "plan-error": "no answer within 20 s",
            "compilers": "there is no such compiler here",
            "plans": "3 of 3 compute ops on ANE",
        },
    ),
}
