# SPDX-License-Identifier: Apache-2.0
"""The dashboard as data; test_served.py tests its queries."""

from __future__ import annotations

import json

from trtspec.report.monitoring.configuration import PER_ROW, WIDTH, dashboard


def test_dashboard_is_deterministic_with_unique_panels() -> None:
    assert json.dumps(dashboard()) == json.dumps(dashboard())
    panels = dashboard()["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert len({panel["title"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert PER_ROW * WIDTH == 24, "Grafana has 24 columns"


def test_dashboard_variables_select_data_source_model_and_instance() -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'model=~"$model", instance=~"$instance"' in target["expr"]
    assert set(variables) == {"datasource", "model", "instance"}
