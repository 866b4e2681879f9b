"""Data larger than memory for an ordinary `DataLoader`: Parquet, CSV and Dask, read row group by row group.

They need the extra ``jupyter_dtrain[data]``; PyArrow and Dask are imported when they are first used.
"""

from __future__ import annotations

from .csv_files import csv
from .dask_collections import from_dask
from .parquet_files import parquet
from .parquet_writer import ParquetWriter, to_parquet
from .row_groups import RowGroupDataset

__all__ = ["ParquetWriter", "RowGroupDataset", "csv", "from_dask", "parquet", "to_parquet"]
