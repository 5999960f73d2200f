"""What a warm interpreter imports beforehand."""

from __future__ import annotations

from prefect_gpu.worker.nodes.warm import completed


def test_what_pytorch_imports_at_the_first_optimizer_is_imported_with_it() -> None:
    assert completed(["torch.nn", "xgboost", "torch"]) == ["torch.nn", "torch._dynamo", "xgboost", "torch"]
    assert completed(["torchmetrics", "sklearn"]) == ["torchmetrics", "sklearn"]
    assert completed([]) == []
