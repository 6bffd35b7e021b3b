"""First names and surnames of people in word problems, in lower case: what tells that only names differ.

Taken from MAWPS, ASDiv-A and SVAMP. Words that mean something else at the head of a clause (April, Will) are left out
where they mostly do.
"""

from __future__ import annotations

_NAMES = """
    aaron abe adam adolfo aiyanna alan albert alec alex alexa alexander alicia alissa allan allen allie allyson alvin
    alyssa amanda amy anderson andre andrew andy angela anita ann anna anne annette annie anthony antonia arthur
    ashley audrey barbara becky beka bella belle ben benjamin benny bert beryl beth betty beverly bianca billie billy
    blake bob bobby bonnie brad brandon brandy brenda brennan brett brian bridget bruce bruno bryan bryon buddy cade
    caitlin carey carl carla carlos carol carolyn carrie carson carter catherine ceasar chad charlene charles charlie
    charlotte cheryl chloe chris christian christina christine christopher cindy clarence cody conner connie
    corey craig cunningham dale dalton dan dana daniel danny darius darnel dave david dean debby deborah debra denise
    dennis derek derrick diana diane dina donald donna dora doris dorothy doug douglas dylan ed edgar edward elisa
    elise elizabeth ella ellen ellison emily eric erica erik erin ernest ethan eugene evan eve evelyn ezra faye finn
    flannery frances frank frankie franklin frannie fred garrett gary gavin george gerald geraldine gino gloria gordon
    grace greg griffin guzman gwen haley hancock hannah harold harry harvey hayley hazel heather heine helen henry
    hilt holly howard iesha irene irwin isabel isabella isha jack jackie jackson jacqueline jacques jake jakes james
    jane janet janice janine jasmine jason jasper jazmin jean jeff jeffrey jen jenn jennifer jenny jeremy jerry jesse
    jessica jessie jill joan joe john johnny joline jonah jonathan jones jordan jorge jose joseph josh joshua jovana
    joyce juan judy julia julian julie justin kaleb kaleen karen karin kate katerina katherine kathleen kathryn kathy
    katie keith kelly kendall kendra kenji kenneth kenny kevin kim kimberly kirsten kristi kurt kyle kylie kyoko lana
    larry laura laurie lawrence lee lena lenny lewis lex lexi lexie lillian lily linda lindsey lino lisa liz lizette
    lizzie logan lori lou louis louise lucy luis lukas luke madison maggi maggie mandy marcia marcie marco marcus
    margaret maria marian marie mariela marilyn marin mark marlee marta martha martin marvin mary mason matt matthew
    maura max meg megan melanie melissa michael michelle mika mikayla mike mikey miki mildred millie minerva misha
    mitch molly mona montoya morgan nancy nathan neale ned nell nicholas nick nicole nina norma oliver olivia olsen
    omar oscar paco paige pamela pat patricia patrick paul paula penny peter philip phillip phyllis priya rachel ralph
    ramon randall randy rebecca richard rick riley rob robert robin robyn roden roger ron ronald rosa roy ruby rupert
    russell ruth ryan sally sam sammy sandra sandy santiago sara sarah scarlett scott sean seth shannon sharon shawn
    shelby sheridan shiela shirley simon smith snyder sofia spencer stanley stephanie steve steven sue sumata susan
    susie suzie tammy tanner ted terrell terry teresa tess tessa theresa thomas tiffany tim timothy tina todd
    tom tommy tony tori trevor tripp trisha tyler vanessa victor vince vincent vinnie virginia wagner wagners wally
    wanda warren wayne welch wendy william willie willy winnie wong yardley zach zachary zoe
"""

PERSON_NAMES = frozenset(_NAMES.split())
