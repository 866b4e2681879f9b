"""Enumerations of the notebook: what their members have beside a value goes to engines and comes home."""

from __future__ import annotations

SETUP = """
import enum
class Planet(enum.Enum):
    MERCURY = (3.0e23, 2.0e6)
    EARTH = (6.0e24, 6.0e6)
    def __init__(self, mass, radius):
        self.mass, self.radius, self.visits = mass, radius, []
    @property
    def density(self): return self.mass / self.radius

class Kind(enum.Enum):
    PLAIN = "plain"
    MODEL = nn.Linear
    def make(self): return self.value(2, 1)

earth = Planet.EARTH
kept = [earth, Planet.EARTH.visits]
"""
CELL = "%%distribute --engines 2\n"


def test_members_have_their_attributes_and_stay_the_same_objects(notebook):
    notebook.run(SETUP)
    shown = notebook.run(f"{CELL}earth.density, Planet((6.0e24, 6.0e6)) is earth, earth is Planet['EARTH'], Planet.MERCURY.visits")
    assert shown.result == "(1e+18, True, True, [])"
    notebook.run(f"{CELL}Planet.EARTH.visits.append(earth)\nPlanet.MERCURY.moons = 0\nPlanet.EARTH.moons = 1\nmade = Kind.MODEL.make()")
    same = "earth is Planet.EARTH, earth is kept[0], earth.visits is kept[1], earth.visits == [earth], type(made) is nn.Linear"
    assert notebook.value(f"({same})") == (True,) * 5
    assert notebook.value("(Planet.MERCURY.moons, earth.moons)") == (0, 1)
    assert notebook.run(f"{CELL}sum(planet.moons for planet in Planet)").result == "1"
