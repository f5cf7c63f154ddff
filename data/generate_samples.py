# /// script
# requires-python = ">=3.11"
# dependencies = ["paperang-p2-fonts-cjk==0.1.0", "python-docx==1.2.0", "reportlab==5.1.0"]
# ///
"""Write the binary sample documents (.docx, .pdf) again: `uv run data/generate_samples.py`.

The results are committed and are the same bytes on every run with the versions above. The font package holds WenQuanYi
Micro Hei, whose licence (Apache-2.0) allows embedding it in documents.
"""

import datetime
import io
import zipfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from docx import Document
from docx.document import Document as WordDocument
from docx.shared import Pt
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

SAMPLES = Path(__file__).parent / "samples"
CHINESE_FONT = "WenQuanYiMicroHei"
WRITTEN = datetime.datetime(2025, 11, 3, 9, 0)
"""The documents' own dates, so that the files do not change from run to run."""


def main() -> None:
    """Write all binary samples."""
    font = files("paperang_p2_fonts_cjk") / "fonts" / "wqy-microhei.ttc"
    pdfmetrics.registerFont(TTFont(CHINESE_FONT, io.BytesIO(font.read_bytes()), subfontIndex=0))
    save_word(onboarding(), SAMPLES / "handbook" / "onboarding.docx", "Onboarding guide")
    save_word(purchasing(), SAMPLES / "handbook" / "采购管理办法.docx", "采购管理办法")
    field_report(SAMPLES / "products" / "FS-200-field-report.pdf")
    maintenance_manual(SAMPLES / "products" / "FS-200维护手册.pdf")


def onboarding() -> WordDocument:
    """English: headings, a table, a bulleted and a numbered list."""
    document = Document()
    document.add_heading("Onboarding guide", 0)
    document.add_paragraph(
        "For new colleagues at Halden Instruments and the people who receive them. The guide covers the time from the "
        "signed contract to the end of the probation period, which lasts six months."
    )
    document.add_heading("Before the first day", 1)
    document.add_paragraph("The team lead orders a workplace in the IT portal at least 10 working days ahead:")
    for item in (
        "a laptop (standard model: 32 GB of memory, 14 inch screen),",
        "two hardware keys for sign-in, one of them as a spare,",
        "a badge with access to the floors that are needed, and to the laboratory after the safety briefing.",
    ):
        document.add_paragraph(item, style="List Bullet")
    document.add_heading("The first two weeks", 1)
    add_word_table(
        document,
        [
            ("When", "What", "Who"),
            ("Day 1, 09:30", "Welcome and tour, hand-over of the laptop", "People team"),
            ("Day 2, 14:00", "Laboratory safety briefing (90 minutes)", "Safety officer Mara Lindqvist"),
            ("Day 4, 10:00", "Product introduction with a dismantled FS-200", "Product management"),
            ("Day 8, 11:00", "How we run Halden Cloud, with access to the staging system", "Platform engineering"),
            ("Day 10, 15:00", "First talk about expectations", "Team lead"),
        ],
    )
    document.add_heading("Your buddy", 1)
    document.add_paragraph(
        "Every new colleague has a buddy from another team for the first 12 weeks. The company pays one lunch a week "
        "for both, up to 18 EUR per person. Buddies do not report to anybody about you."
    )
    document.add_heading("Probation period", 1)
    document.add_paragraph("There are three talks with the team lead and the people team:")
    for item in ("after 6 weeks,", "after 14 weeks,", "after 22 weeks, with the decision in writing."):
        document.add_paragraph(item, style="List Number")
    document.add_paragraph(
        "During probation the notice period is two weeks on both sides; afterwards it is three months to the end of a "
        "month."
    )
    document.add_heading("Working from home", 1)
    document.add_paragraph(
        "After the fourth week you may work from home on up to three days a week. Tuesday is the day on which "
        "everybody is in the office. Working from another country is possible for 20 days a year within the European "
        "Union and needs a form from the people team (A1 certificate) four weeks ahead."
    )
    return document


def purchasing() -> WordDocument:
    """Chinese: headings, a table, a list."""
    document = Document()
    document.add_heading("采购管理办法", 0)
    document.add_paragraph(
        "为规范瀚德仪器（上海）有限公司的采购行为，控制成本并防范风险，制定本办法。本办法适用于原材料、设备和服务的采购。"
    )
    document.add_heading("一、审批权限", 1)
    document.add_paragraph("单笔采购按金额确定审批人，不得拆分订单以规避审批：")
    add_word_table(
        document,
        [
            ("采购金额（含税）", "审批人", "报价要求"),
            ("2 万元以下", "部门经理", "一家报价即可"),
            ("2 万元至 15 万元", "采购总监", "至少三家书面报价"),
            ("15 万元以上", "总经理", "公开招标，招标期不少于 15 天"),
        ],
    )
    document.add_heading("二、供应商准入", 1)
    document.add_paragraph("新供应商须提交下列材料，经质量部现场审核合格后列入合格供应商名录，名录每两年复审一次：")
    for item in ("营业执照复印件；", "ISO 9001 质量管理体系证书；", "近三年主要客户清单；", "反商业贿赂承诺书。"):
        document.add_paragraph(item, style="List Bullet")
    document.add_heading("三、验收与付款", 1)
    document.add_paragraph(
        "货物到达后 3 个工作日内由仓库和质量部共同验收。验收合格并收到增值税专用发票后，付款期限为 45 天。"
        "预付款比例不得超过合同总额的 30%。"
    )
    document.add_heading("四、紧急采购", 1)
    document.add_paragraph(
        "生产线停线时，可以先采购后补手续，但必须电话取得采购总监同意，并在 24 小时内补齐审批单。"
        "同一部门每季度的紧急采购不得超过 4 次。"
    )
    return document


def add_word_table(document: WordDocument, rows: Sequence[Sequence[str]]) -> None:
    """A grid table with the first row as header."""
    table = document.add_table(rows=0, cols=len(rows[0]), style="Light Grid Accent 1")
    for row in rows:
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text


def save_word(document: WordDocument, path: Path, title: str) -> None:
    """Save with fixed dates, also in the zip archive."""
    document.styles["Normal"].font.size = Pt(11)
    properties = document.core_properties
    properties.title, properties.author, properties.comments = title, "Halden Instruments", ""
    properties.created = properties.modified = WRITTEN
    properties.last_modified_by, properties.revision = "", 1
    written = io.BytesIO()
    document.save(written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            fixed = zipfile.ZipInfo(entry.filename, date_time=WRITTEN.timetuple()[:6])
            fixed.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(fixed, source.read(entry))


def field_report(path: Path) -> None:
    """English, three pages: findings; maintenance with a table of figures; recommendations."""
    heading = ParagraphStyle(
        "heading", fontName="Helvetica-Bold", fontSize=14, leading=18, spaceBefore=10, spaceAfter=6
    )
    text = ParagraphStyle("text", fontName="Helvetica", fontSize=10.5, leading=15, spaceAfter=7)
    title = ParagraphStyle("title", parent=heading, fontSize=20, leading=26, spaceAfter=10)
    story: list[Flowable] = [
        Paragraph("FS-200 field report 2025", title),
        Paragraph("Quality department, Halden Instruments. Period: January to September 2025.", text),
        Paragraph("1 Summary", heading),
        Paragraph(
            "This report follows 412 probes of the type FS-200 at 57 sites: 31 river stations, 19 sewage works and 7 "
            "drinking water reservoirs. Together they were in water for 96,300 days. The probes delivered 98.7 % of "
            "the values that were due. The remaining 1.3 % were lost for three reasons: fouled optics, flat batteries "
            "and gaps in the mobile network.",
            text,
        ),
        Paragraph(
            "Fouling stays the main cause and accounts for 61 % of the lost values. It is worst in sewage works "
            "between June and August, when the water is warmer than 18 degrees. Batteries account for 24 % and the "
            "network for 15 %.",
            text,
        ),
        Paragraph("2 How the figures were obtained", heading),
        Paragraph(
            "A value counts as lost when it is missing in Halden Cloud 96 hours after it was due, or when the probe "
            "marked it as implausible. Sites with fewer than 90 days of operation were left out. Every visit of a "
            "technician was taken from the service log; 38 visits without a written reason were asked for by "
            "telephone.",
            text,
        ),
        PageBreak(),
        Paragraph("3 Maintenance in the field", heading),
        Paragraph(
            "The wiper blade of the FS-200 has to be replaced every 180 days in rivers and reservoirs and every 75 "
            "days in sewage works. Probes whose blade was older lost four times as many values as the others. The "
            "optical window is cleaned with a soft cloth and citric acid at 5 %; alcohol makes the seal brittle and "
            "must not be used.",
            text,
        ),
        Paragraph(
            "The oxygen membrane lasted 14 months on average. It should be changed together with every second wiper "
            "blade, but after 15 months at the latest.",
            text,
        ),
        Paragraph("Table 1: Visits and lost values by kind of site", text),
        pdf_table(
            [
                ("Kind of site", "Probes", "Visits per probe", "Values lost", "Mean time per visit"),
                ("River station", "204", "1.9", "0.9 %", "42 min"),
                ("Sewage works", "171", "4.6", "2.2 %", "65 min"),
                ("Drinking water reservoir", "37", "1.1", "0.4 %", "38 min"),
            ],
            "Helvetica",
            "Helvetica-Bold",
            (50, 20, 30, 26, 34),
        ),
        Spacer(1, 5 * mm),
        Paragraph("4 Batteries", heading),
        Paragraph(
            "The lithium pack (part number 7310-22) reached 27 months with one measurement every 15 minutes, and 11 "
            "months with one every 2 minutes. Below 3.2 V per cell the probe stops the radio first and keeps "
            "measuring.",
            text,
        ),
        PageBreak(),
        Paragraph("5 Recommendations", heading),
        Paragraph(
            "First, offer sewage works a service contract with five visits a year; at 65 minutes per visit it pays for "
            "itself from the third probe on. Second, ship every probe from January 2026 on with the coated window, "
            "which halved fouling in the trial at the Lindau works. Third, send an alarm when the wiper counter passes "
            "40,000 strokes.",
            text,
        ),
        Paragraph("6 Costs", heading),
        Paragraph(
            "The coated window costs 18.40 EUR more per probe. With 1,150 probes planned for 2026 this makes 21,160 "
            "EUR. One avoided visit saves 96 EUR on average, so the extra cost is recovered with 221 avoided visits.",
            text,
        ),
        Paragraph("7 Open questions", heading),
        Paragraph(
            "Seven probes of hardware revision B restarted without a reason that could be found. They were sent to the "
            "laboratory; the result is expected in February 2026. The responsible engineer is Tomasz Ferrari.",
            text,
        ),
    ]
    build_pdf(path, story, title="FS-200 field report 2025", footer="FS-200 field report 2025", font="Helvetica")


def maintenance_manual(path: Path) -> None:
    """Chinese, two pages: installation and cleaning; calibration with a table of error codes."""
    heading = ParagraphStyle("heading", fontName=CHINESE_FONT, fontSize=14, leading=20, spaceBefore=10, spaceAfter=6)
    text = ParagraphStyle("text", fontName=CHINESE_FONT, fontSize=10.5, leading=17, spaceAfter=7, wordWrap="CJK")
    title = ParagraphStyle("title", parent=heading, fontSize=20, leading=28, spaceAfter=10)
    story: list[Flowable] = [
        Paragraph("FS-200 水质传感器维护手册", title),
        Paragraph("瀚德仪器（上海）有限公司，技术服务部，2025 年 10 月版。", text),
        Paragraph("一、安装", heading),
        Paragraph(
            "传感器应垂直安装，光学窗口位于水面以下至少 30 厘米，距离河床或池底不少于 50 厘米。"
            "供电电压为 12 伏直流，允许范围 9.6 至 28 伏。电缆最长 100 米，超过时须加装中继器。",
            text,
        ),
        Paragraph("固定支架的螺栓用 8 牛·米的力矩拧紧，拧得过紧会使外壳密封圈变形而进水。", text),
        Paragraph("二、日常清洁", heading),
        Paragraph(
            "河道站点每月清洁一次，污水处理厂每周清洁一次。先用清水冲洗，再用软布蘸 5% 柠檬酸溶液擦拭光学窗口。"
            "禁止使用酒精和钢丝球，否则会损伤窗口镀膜。清洁前请在平台上把站点切换到“维护模式”，以免误报警。",
            text,
        ),
        PageBreak(),
        Paragraph("三、校准", heading),
        Paragraph(
            "浊度每 6 个月校准一次，使用 0 NTU 和 100 NTU 两种标准液，两点之间须静置 3 分钟。"
            "溶解氧每 3 个月校准一次，采用空气饱和法。校准后斜率应在 0.85 至 1.15 之间，超出范围的须更换膜片。",
            text,
        ),
        Paragraph("四、故障代码", heading),
        pdf_table(
            [
                ("代码", "含义", "处理方法"),
                ("E07", "刮刷电机堵转", "断电后清除异物，仍报警则更换电机"),
                ("E12", "光学窗口污染", "按第二章清洁窗口"),
                ("E21", "供电电压过低", "检查电源，电压应不低于 9.6 伏"),
                ("E35", "内部湿度超过 60%", "立即取出传感器，更换干燥剂和密封圈"),
            ],
            CHINESE_FONT,
            CHINESE_FONT,
            (24, 48, 88),
        ),
        Spacer(1, 5 * mm),
        Paragraph("五、备件与返修", heading),
        Paragraph(
            "刮刷片、膜片和密封圈建议按每 10 台传感器各备 2 套。整机保修期为 36 个月，返修请先致电 021-5550-0186 "
            "取得返修编号，返修周期一般为 12 个工作日。",
            text,
        ),
    ]
    build_pdf(path, story, title="FS-200 水质传感器维护手册", footer="FS-200 维护手册", font=CHINESE_FONT)


def pdf_table(rows: Sequence[Sequence[str]], font: str, header_font: str, widths_mm: Sequence[float]) -> Table:
    """A ruled table with a grey header row."""
    table = Table(rows, colWidths=[width * mm for width in widths_mm], hAlign="LEFT")
    table.setStyle(
        TableStyle(
            [
                ("FONT", (0, 0), (-1, -1), font, 9.5),
                ("FONT", (0, 0), (-1, 0), header_font, 9.5),
                ("BACKGROUND", (0, 0), (-1, 0), colors.HexColor("#e6e6e6")),
                ("GRID", (0, 0), (-1, -1), 0.5, colors.grey),
                ("TOPPADDING", (0, 0), (-1, -1), 4),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 4),
            ]
        )
    )
    return table


def build_pdf(path: Path, story: list[Flowable], *, title: str, footer: str, font: str) -> None:
    """Write A4 pages with a footer; `invariant` leaves the date and the random id out of the file."""

    def draw_footer(canvas: Canvas, template: SimpleDocTemplate) -> None:
        canvas.setFont(font, 8.5)
        canvas.drawString(22 * mm, 12 * mm, footer)
        canvas.drawRightString(A4[0] - 22 * mm, 12 * mm, str(template.page))

    template = SimpleDocTemplate(
        str(path),
        pagesize=A4,
        leftMargin=22 * mm,
        rightMargin=22 * mm,
        topMargin=20 * mm,
        bottomMargin=22 * mm,
        title=title,
        author="Halden Instruments",
        invariant=1,
    )
    template.build(story, onFirstPage=draw_footer, onLaterPages=draw_footer)


if __name__ == "__main__":
    main()
