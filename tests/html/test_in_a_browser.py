"""The report in a browser: no error, nothing wider than the screen, and the script's filter and order."""

import shutil

import pytest

from touchstone.conformance.html import cli, records

pytestmark = [pytest.mark.needs("selenium", "chromedriver"), pytest.mark.slow]

OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
ROWS = "[...document.querySelector('#summary table').tBodies[0].rows]"  # of the first GPU's table
SHOWN = f"return {ROWS}.filter(r => !r.hidden).map(r => r.cells[0].innerText)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The report of the kept records, and its name."""
    folder = tmp_path_factory.mktemp("site")
    found = records.read(sorted(cli.RESULTS.glob("*.json")))
    (folder / "report").mkdir()
    for name, text in cli.pages(found, "report").items():
        (folder / (name or "report.html")).write_text(text)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def opened(browser, path, width):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get(path.as_uri())
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    return browser


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_screen(browser, site, width):
    for name in ("report.html", "report/attention.html", "report/softmax.html", "report/matmul.html"):
        assert opened(browser, site / name, width).execute_script(OVERFLOW) <= 0, name


def test_the_filter_leaves_rows_with_all_of_its_words(browser, site):
    page = opened(browser, site / "report.html", 1280)
    every = page.execute_script(SHOWN)
    field = page.find_element("css selector", "#summary input[type=search]")
    field.send_keys("backward norm")
    shown = page.execute_script(SHOWN)
    assert 0 < len(shown) < len(every) and all("backward" in op and "norm" in op for op in shown)
    field.clear()
    field.send_keys("no such kernel")
    assert page.execute_script(SHOWN) == []


def test_a_heading_puts_the_largest_number_first_and_text_from_a_on(browser, site):
    page = opened(browser, site / "report.html", 1280)
    op, first = page.find_elements("css selector", "#summary thead th button")[:2]
    values = f"return {ROWS}.map(r => Number(r.cells[1].dataset.sort))"
    before = page.execute_script(SHOWN)
    first.click()
    found = page.execute_script(values)
    assert found == sorted(found, reverse=True) and page.execute_script(SHOWN) != before
    first.click()
    assert page.execute_script(values) == sorted(found)
    op.click()
    assert page.execute_script(SHOWN) == sorted(before)


def test_links_lead_to_the_page_of_an_op_and_back(browser, site):
    page = opened(browser, site / "report.html", 1280)
    page.find_element("link text", "softmax").click()
    assert page.title.startswith("softmax") and page.find_elements("css selector", "#ladders .bar")
    page.find_element("link text", "all ops").click()
    assert page.find_elements("css selector", "#summary tbody tr")
