"""Prefect's own suite for blocks, of which two tests wait until the project has an address on the web."""

from typing import Any

import pytest
from prefect.testing.standard_test_suites import BlockStandardTestSuite

from prefect_gpu.blocks.files import KINDS

_no_address = pytest.mark.xfail(strict=True, raises=AssertionError, reason="the project has no address on the web yet")


@pytest.mark.parametrize("block", KINDS.values(), ids=KINDS)
class TestPrefectsOwnSuite(BlockStandardTestSuite):
    @pytest.fixture
    def block(self, request: Any) -> Any:
        return request.param

    @_no_address
    def test_has_a_documentation_url(self, block: Any) -> None:
        super().test_has_a_documentation_url(block)

    @_no_address
    def test_has_a_valid_image(self, block: Any) -> None:
        super().test_has_a_valid_image(block)
